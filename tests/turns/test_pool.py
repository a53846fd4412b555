"""Environments and tools in real processes: what they do wrong is named, and no process is left behind."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes import turn_tools
from fakes.processes import descendants, wait_for_end
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.calls import Call
from asyncrl.turns.environment import End, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault, TurnLimit
from asyncrl.turns.pool import EpisodePool
from sandbox import landlock

OWN = """
import asyncio, os, random, signal, subprocess, sys, time
from fractions import Fraction
from asyncrl.turns import End, EnvironmentUnavailable, Observation

def deep(): return deep()

class Odd:
    '''Does what the text says.'''
    def __init__(self, *, secret=None): self.secret, self.turns = secret, 0
    def start(self, row):
        match row.get("start"):
            case "hang": time.sleep(1000)
            case "raise": raise KeyError("no column")
            case "number": return 3
            case "text": return "Guess."
            case "list":
                return [{"role": "system", "content": "s"}, {"role": "user", "content": str(row["n"])}]
    def step(self, text):
        self.turns += 1
        match text.split():
            case ["sleep"]: time.sleep(1000)
            case ["nap"]: time.sleep(0.8)
            case ["spin"]:
                while True: pass
            case ["raise"]: raise KeyError("a bug")
            case ["exit"]: sys.exit(3)
            case ["_exit"]: os._exit(3)
            case ["die", number]: os.kill(os.getpid(), int(number))
            case ["memory"]: bytearray(1 << 40)
            case ["deep"]: deep()
            case ["unavailable"]: raise EnvironmentUnavailable("the server is away")
            case ["print"]: print("what it prints")
            case ["child"]:
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
                return Observation(str(child.pid))
            case ["return", what]: return eval(what)
            case ["environ"]: return Observation(repr(dict(os.environ)))
            case ["open", path]: return Observation(open(path).read())
            case ["random"]: return Observation(str(random.random()))
            case ["secret"]: return Observation(str(self.secret))
            case ["pid"]: return Observation(str(os.getpid()))
        return Observation(f"{self.turns}: {text}", reward=0.5)

class Awaits:
    async def start(self, row):
        self.ticks = 0
        self.task = asyncio.get_running_loop().create_task(self.tick())
        return "awaited"
    async def tick(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0.01)
    async def step(self, text):
        await asyncio.sleep(0)
        return Observation(str(self.ticks))
    async def close(self):
        open(self.path, "w").write("closed") if hasattr(self, "path") else None

class Closes(Odd):
    def start(self, row): self.path = row["path"]
    def close(self): open(self.path, "w").write("closed")

class Stateless(Odd):
    recovery = "stateless"

class Neither(Odd):
    recovery = "neither"

class Moody(Odd):
    def step(self, text): return Observation(str(random.random()))

class Badly(Odd):
    recovery = "sometimes"

class NoStep:
    def start(self, row): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.fixture
async def pool(folder: Path) -> AsyncIterator[EpisodePool]:
    async with EpisodePool(folder=folder, timeout_seconds=60.0, prints=folder / "prints.log") as pool:
        yield pool


def named(name: str, **options: Any) -> EnvironmentSpec:
    return EnvironmentSpec(f"./own.py:{name}", options)


async def answer(pool: EpisodePool, text: str, name: str = "Odd", **options: Any) -> Observation | End:
    """The answer to the first turn."""
    episode = await pool.open(named(name, **options))
    try:
        await episode.start({})
        return await episode.step(text)
    finally:
        await episode.close()


async def test_each_trajectory_has_an_environment_of_its_own(pool: EpisodePool) -> None:
    first, second = await pool.open(named("Odd", secret=7)), await pool.open(named("Odd", secret=8))
    assert await first.start({}) is None and first.recoveries.environment is Recovery.REPLAYABLE
    assert await first.start({"start": "text"}) == [{"role": "user", "content": "Guess."}]
    assert await second.start({"start": "list", "n": 5}) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "5"},
    ]
    assert await first.step("a") == Observation([{"role": "user", "content": "1: a"}], 0.5)
    assert await first.step("b") == Observation([{"role": "user", "content": "2: b"}], 0.5)
    assert (await second.step("secret")).messages[0]["content"] == "8"  # type: ignore[union-attr,index]
    assert (await first.step("pid")) != (await second.step("pid"))
    assert await first.step("return End(1,'d','x')") == End(1.0, "d", "x")
    await first.close()
    await first.close()
    await second.close()


async def test_without_environment_and_tools_nothing_has_a_process() -> None:
    async with EpisodePool() as pool:
        episode = await pool.open(None)
        assert await episode.start({}) is None and await episode.step("x") == End()
        (result,) = await episode.call([Call("python", {})])
        assert result.is_error and "no tool 'python'" in result.output
        await episode.close()
        assert not pool._templates


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise", "step raised KeyError: 'a bug'"),
        ("exit", "step raised SystemExit: 3"),
        ("_exit", "ended by itself, with exit code 3"),
        ("die 9", "was ended by SIGKILL, which the pool had not sent"),
        ("die 11", "crashed: SIGSEGV"),
        ("unavailable", "^the server is away$"),
        ("return None", "step returned NoneType, expected asyncrl.turns.Observation"),
        ("return 'hello'", "step returned str, expected asyncrl.turns.Observation"),
        ("return Observation(None)", "messages are NoneType, expected a text or a list"),
        ("return Observation([])", "would read nothing"),
        ("return Observation(['a'])", "number 1, is str, expected {'role'"),
        ("return Observation([{'role':'user'}])", "number 1, has 'role', expected a text 'role' and"),
        (
            "return Observation([{'role':'user','content':Fraction(1)}])",
            "number 1: fractions.Fraction is no plain data",
        ),
        ("return Observation('a',reward='much')", "reward is 'much', expected a number"),
        ("return End(2)", "score is 2, expected a number in"),
        ("return End(float('nan'))", "score is nan, expected a number in"),
        ("return End(0,detail=3)", "detail is int, expected a text"),
    ],
)
async def test_a_bug_of_an_environment_is_a_fault_that_names_it(
    pool: EpisodePool, text: str, sentence: str
) -> None:
    with pytest.raises(EnvironmentFault, match=sentence):
        await answer(pool, text)


async def test_a_fault_has_the_traceback(pool: EpisodePool) -> None:
    with pytest.raises(EnvironmentFault) as raised:
        await answer(pool, "raise")
    assert "own.py" in raised.value.trace and "KeyError" in raised.value.trace


@pytest.mark.parametrize(
    ("start", "sentence"), [("raise", "start raised KeyError"), ("number", "what start returned are int")]
)
async def test_a_bug_at_the_start_is_a_fault(pool: EpisodePool, start: str, sentence: str) -> None:
    episode = await pool.open(named("Odd"))
    with pytest.raises(EnvironmentFault, match=sentence):
        await episode.start({"start": start})
    await episode.close()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (EnvironmentSpec("gym_fedback"), "no environment 'gym_fedback'. Did you mean 'gym_feedback'"),
        (EnvironmentSpec("./other.py:A"), "there is no file"),
        (named("Od"), "has no class 'Od'. Did you mean 'Odd'"),
        (named("Odd", secrt=3), "has no option 'secrt'. Did you mean 'secret'"),
        (named("NoStep"), "has no method 'step'"),
        (named("Badly"), "has the recovery 'sometimes', expected one of replayable"),
    ],
)
async def test_a_name_or_option_that_is_wrong_is_a_fault_that_names_it(
    pool: EpisodePool, spec: EnvironmentSpec, sentence: str
) -> None:
    with pytest.raises(EnvironmentFault, match=sentence):
        await pool.open(spec)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("memory", "memory_mib"),
        ("deep", "RecursionError"),
        # Not shortened to what fits, and judged.
        ("return Observation('x'*(17<<20))", "more than 16777216 bytes"),
        ("return Observation([{'role':'user','content':'x'*(9<<20)}]*2)", "more than 16777216 bytes"),
    ],
)
async def test_memory_and_recursion_are_limits_of_the_turn(pool: EpisodePool, text: str, limit: str) -> None:
    with pytest.raises(TurnLimit, match=limit):
        await answer(pool, text)


@pytest.mark.parametrize("text", ["sleep", "spin"])
async def test_a_turn_over_its_time_is_a_limit_and_its_process_is_killed(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As long as a busy machine takes to give it that time.
    monkeypatch.setattr("asyncrl.turns.hosted_episode._MAX_STRETCH", 1000.0)
    async with EpisodePool(folder=folder, timeout_seconds=0.3) as pool:
        episode = await pool.open(named("Odd"))
        await episode.start({})
        process = psutil.Process(int((await episode.step("pid")).messages[0]["content"]))  # type: ignore
        with pytest.raises(TurnLimit, match="timeout_seconds"):
            await episode.step(text)
        assert not wait_for_end([process]) and pool.num_killed == 1
        await episode.close()
        assert isinstance(await answer(pool, "still"), Observation)


async def test_a_start_that_hangs_is_a_fault(folder: Path) -> None:
    async with EpisodePool(folder=folder, timeout_seconds=0.3, start_seconds=0.3) as pool:
        episode = await pool.open(named("Odd"))
        with pytest.raises(EnvironmentFault, match="0.3 s to start"):
            await episode.start({"start": "hang"})
        await episode.close()


async def test_what_awaits_is_awaited_and_continues_between_turns(pool: EpisodePool) -> None:
    episode = await pool.open(named("Awaits"))
    assert await episode.start({}) == [{"role": "user", "content": "awaited"}]
    ticks = 0
    while ticks < 20:
        await asyncio.sleep(0.02)
        reply = await episode.step("")
        assert isinstance(reply, Observation)
        ticks = int(reply.messages[0]["content"])  # type: ignore[index,call-overload]
    await episode.close()


async def test_close_of_an_environment_is_called(pool: EpisodePool, tmp_path: Path) -> None:
    episode = await pool.open(named("Closes"))
    await episode.start({"path": str(tmp_path / "closed")})
    await episode.close()
    assert (tmp_path / "closed").read_text() == "closed"


async def test_what_an_environment_starts_ends_with_it(pool: EpisodePool) -> None:
    episode = await pool.open(named("Odd"))
    await episode.start({})
    child = psutil.Process(int((await episode.step("child")).messages[0]["content"]))  # type: ignore
    await episode.close()
    assert not wait_for_end([child])


async def test_no_process_is_left_when_the_pool_closes(folder: Path) -> None:
    before = descendants()
    pool = EpisodePool(folder=folder, timeout_seconds=60.0)
    episodes = [await pool.open(named("Odd")) for _ in range(3)]
    work = [asyncio.create_task(episode.step("sleep")) for episode in episodes]
    assert len(descendants() - before) == 4
    await pool.close()
    assert not wait_for_end(descendants() - before)
    for found in await asyncio.gather(*work, return_exceptions=True):
        assert isinstance(found, EnvironmentFault)
    for episode in episodes:
        await episode.close()
    with pytest.raises(EnvironmentFault, match="the pool is closed"):
        await pool.open(named("Odd"))


async def test_a_template_that_dies_with_many_at_work_is_replaced(pool: EpisodePool) -> None:
    opened: list[Any] = []

    async def hangs() -> None:
        episode = await pool.open(named("Odd"))
        await episode.start({})
        opened.append(episode)
        try:
            with pytest.raises(EnvironmentFault, match="its process is gone"):
                await episode.step("sleep")
            # At once, as conversations do: the processes of the old template end while another one starts.
            assert isinstance(await answer(pool, "again"), Observation)
        finally:
            await episode.close()

    works = [asyncio.create_task(hangs()) for _ in range(8)]
    while len(opened) < len(works):
        await asyncio.sleep(0.01)
    template = pool._templates[True]
    assert template._process is not None
    os.kill(template._process.pid, signal.SIGKILL)
    async with asyncio.timeout(300):
        await asyncio.gather(*works)


async def test_a_template_that_did_not_start_again_is_tried_once_more(pool: EpisodePool) -> None:
    await answer(pool, "first")
    template = pool._templates[True]
    assert template._process is not None
    module, template._module = template._module, "no_such_module"
    os.kill(template._process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="did not start"):
        await answer(pool, "again")
    template._module = module
    assert isinstance(await answer(pool, "again"), Observation)


async def test_others_wait_for_a_place(folder: Path) -> None:
    async with EpisodePool(folder=folder, max_processes=1) as pool:
        first = await pool.open(named("Odd"))
        waiting = asyncio.create_task(pool.open(named("Odd")))
        await asyncio.wait({waiting}, timeout=0.2)
        assert not waiting.done()
        await first.close()
        await (await waiting).close()
        # A place that was not used is given back.
        for _ in range(3):
            with pytest.raises(EnvironmentFault, match="no method 'step'"):
                await asyncio.wait_for(pool.open(named("NoStep")), 60.0)


async def test_an_environment_sees_no_token_and_no_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASYNCRL_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "the-secret")
    async with EpisodePool(folder=folder) as pool:
        reply = await answer(pool, "environ")
        assert isinstance(reply, Observation)
        assert "PATH" in str(reply.messages) and "the-secret" not in str(reply.messages)


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="needs Landlock")
async def test_hidden_files_cannot_be_opened_and_their_neighbours_can(folder: Path) -> None:
    (folder / "run").mkdir()
    for name in ("run/journal", "gold.jsonl", "own.txt"):
        (folder / name).write_text(name)
    async with EpisodePool(folder=folder, hidden=[folder / "run", folder / "gold.jsonl"]) as pool:
        assert "own.txt" in str(await answer(pool, f"open {folder}/own.txt"))
        for name in ("run/journal", "gold.jsonl"):
            with pytest.raises(EnvironmentFault, match="PermissionError"):
                await answer(pool, f"open {folder}/{name}")
        with pytest.raises(EnvironmentFault, match="PermissionError"):
            await answer(pool, f"open /proc/{os.getpid()}/environ")


@pytest.mark.parametrize("tools", [["python"], [{"python": {"tag": "code"}}]])
def test_nothing_is_hidden_where_the_sandbox_of_a_tool_must_mount(tools: list[Any], tmp_path: Path) -> None:
    assert EpisodePool(tools=tools, hidden=[tmp_path])._hidden == ()


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="needs Landlock")
async def test_an_environment_with_a_sandbox_of_its_own_opens_it_beside_one_that_sees_less(
    folder: Path,
) -> None:
    (folder / "gold.jsonl").write_text("gold")
    async with EpisodePool(folder=folder, hidden=[folder / "gold.jsonl"], timeout_seconds=100) as pool:
        episode = await pool.open(EnvironmentSpec("container"))
        await episode.start({"tests": {"command": "test -e done"}})
        try:
            ran = await episode.step("```sh\ntouch done; pwd\n```")
            assert isinstance(ran, Observation) and "/" in str(ran.messages)
            ended = await episode.step("Done.")
            assert isinstance(ended, End) and ended.score == 1.0
        finally:
            await episode.close()
        with pytest.raises(EnvironmentFault, match="PermissionError"):
            await answer(pool, f"open {folder}/gold.jsonl")


async def test_what_is_printed_goes_to_the_file(pool: EpisodePool, folder: Path) -> None:
    await answer(pool, "print")
    assert "what it prints" in (folder / "prints.log").read_text()


async def test_trajectories_draw_different_numbers(pool: EpisodePool) -> None:
    drawn = {str(await answer(pool, "random")) for _ in range(3)}
    assert len(drawn) == 3


# Tools.


async def test_tools_answer_calls_in_order_and_what_they_raise_is_read(folder: Path) -> None:
    async with EpisodePool(folder=folder, tools=turn_tools.named("count", "odd", "awaits")) as pool:
        episode = await pool.open(None)
        assert episode.recoveries.tools["count"] is Recovery.REPLAYABLE and await episode.start({}) is None
        results = await episode.call(
            [
                Call("count"),
                Call("odd", {"do": "say", "with_": {"a": [1, None]}}),
                Call("odd", {"do": "raise"}),
                Call("odd", {"do": "exit"}),
                Call("odd", {"make": "x"}),
                Call("odd", {"do": "memory"}),
                Call("od", {}),
                Call("count", {}, error="the JSON does not close"),
                Call("awaits"),
                Call("odd", {"do": "number"}),
                Call("count"),
            ]
        )
        assert [result.is_error for result in results] == [False] * 2 + [True] * 6 + [False] * 3
        assert results[9].output == '{"n": [3, null]}'
        assert results[0].output == "1" and results[-1].output == "2"
        assert results[1].output == "say {'a': [1, None]}"
        assert results[2].output == "Error: KeyError: 'a bug'"
        assert results[3].output == "Error: SystemExit: 3"
        assert results[4].output == "Error: odd has no argument 'make'. It takes do, with_."
        assert "memory" in results[5].output
        assert "Did you mean 'odd'? Tools: count, odd, awaits" in results[6].output
        assert results[7].output == "Error: the JSON does not close" and results[8].output == "awaited"
        assert await episode.step("x") == End()
        await episode.close()


async def test_tools_of_two_trajectories_share_no_state(folder: Path) -> None:
    async with EpisodePool(tools=turn_tools.named("count")) as pool:
        for _ in range(2):
            episode = await pool.open(None)
            assert [result.output for result in await episode.call([Call("count")])] == ["1"]
            await episode.close()


async def test_what_a_first_check_of_arguments_loads_is_loaded_before_the_fork() -> None:
    async with EpisodePool(tools=turn_tools.named("odd")) as pool:
        episode = await pool.open(None)
        (result,) = await episode.call([Call("odd", {"do": "processes"})])
        *before, last, own = json.loads(result.output)
        template = pool._templates[True]._process
        assert template is not None and before == [template.pid] and last == own != before[0]
        await episode.close()


async def test_a_late_tool_is_told_to_the_model_and_the_others_start_again(folder: Path) -> None:
    async with EpisodePool(tools=turn_tools.named("count", "odd"), timeout_seconds=0.5) as pool:
        episode = await pool.open(None)
        late = await episode.call([Call("count"), Call("odd", {"do": "sleep"}), Call("count")])
        assert [result.is_error for result in late] == [False, True, True]
        assert "no answer within 0.5 s" in late[1].output and "lost their state" in late[1].output
        assert "not called" in late[2].output
        assert [result.has_lost for result in late] == [False, True, True]
        assert [result.output for result in await episode.call([Call("count")])] == ["1"]
        await episode.close()


@pytest.mark.parametrize(
    ("do", "sentence"),
    [
        ("die", "ended by SIGKILL"),
        ("unavailable", "the index is away"),
        ("object", "what the tool 'odd' returned: object is no plain data"),
    ],
)
async def test_a_tool_that_breaks_its_process_or_its_contract_is_a_fault(do: str, sentence: str) -> None:
    async with EpisodePool(tools=turn_tools.named("odd")) as pool:
        episode = await pool.open(None)
        with pytest.raises(EnvironmentFault, match=sentence):
            await episode.call([Call("odd", {"do": do})])
        await episode.close()


async def test_a_tool_that_cannot_be_loaded_is_a_fault_that_names_it() -> None:
    async with EpisodePool(tools=["missing"]) as pool:
        with pytest.raises(EnvironmentFault, match="no tool 'missing'"):
            await pool.open(None)


@pytest.mark.parametrize("name", ["Odd", "Stateless", "Neither", "Moody"])
async def test_an_environment_is_where_it_was_after_a_tool_was_killed(folder: Path, name: str) -> None:
    async with EpisodePool(folder=folder, tools=turn_tools.named("odd"), timeout_seconds=0.5) as pool:
        episode = await pool.open(named(name))
        await episode.start({})
        await episode.step("one")
        (result,) = await episode.call([Call("odd", {"do": "sleep"})])
        assert result.is_error
        if name in ("Neither", "Moody"):
            with pytest.raises(EnvironmentFault, match="cannot be played again|answers the same turns"):
                await episode.step("two")
        else:
            number = 2 if name == "Odd" else 1
            reply = await episode.step("two")
            assert reply == Observation([{"role": "user", "content": f"{number}: two"}], 0.5)
        await episode.close()


# What a response may hold.

TEXTS = st.one_of(
    st.text(st.characters(), max_size=200),
    st.sampled_from(["\x00", "\ud800", "\udfff\ud800", "{" * 5000, "[" * 100_000, "a" * 3_000_000, ""]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@given(text=TEXTS, value=VALUES | st.sampled_from([nested(400), nested(990), nested(20_000), 10**5000]))
def test_no_response_can_cause_a_fault(text: str, value: Any) -> None:
    async def play() -> None:
        own = Path(__file__).parents[1] / "fakes" / "echo_environment.py"
        async with EpisodePool(tools=turn_tools.named("odd"), timeout_seconds=60.0) as pool:
            episode = await pool.open(EnvironmentSpec(f"{own}:Echo"))
            await episode.start({"text": text, "value": 3})
            try:
                reply = await episode.step(text)
                assert isinstance(reply, Observation)
                str(reply.messages).encode()
                call = Call(text[:1000], {"do": text, "with_": value})
                results = await episode.call([call, Call("odd", call.arguments), Call("odd", {text: value})])
                for result in results:
                    result.output.encode()
            except TurnLimit:
                pass
            await episode.close()

    asyncio.run(play())


async def test_an_overloaded_machine_costs_no_response_its_turn(folder: Path) -> None:
    async with EpisodePool(folder=folder, timeout_seconds=0.3) as pool:
        episode = await pool.open(named("Odd"))
        await episode.start({})
        process = episode._process  # type: ignore[attr-defined]
        began = time.monotonic()
        # As if the kernel had kept it from a CPU all the time since.
        process._starved_seconds = lambda: time.monotonic() - began
        assert isinstance(await episode.step("nap"), Observation)
        with pytest.raises(EnvironmentFault, match="overloaded"):
            await episode.step("sleep")
        await episode.close()
