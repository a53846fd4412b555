"""A run around agents that are at work: drains, servers that sleep, the end, the watchdog, the metrics."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.agents import Agent, Client, Played, Refused, agents_on
from fakes.chat_codec import END
from fakes.notebook import Notebook
from fakes.records import make_task

from asyncrl.controller.status_writer import _answers_wait
from asyncrl.observe.metrics.prometheus import RunMetrics, text
from asyncrl.observe.metrics.turn_metrics import AgentMeter, agent_calls
from asyncrl.records import Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.rollout.drain import Drain
from asyncrl.turns.tally import ENDINGS

ROOT = Path(__file__).parents[3]
ASKED = {"role": "user", "content": "Guess."}
NEXT = {"role": "user", "content": "lower"}


def counted(text: str) -> str:
    return f"turn {text.count('<|im_start|>assistant')}{END}"


class Worker:
    """An agent that works by itself before each of its calls, until it is let on."""

    def __init__(self, num_calls: int = 2) -> None:
        self.num_calls = num_calls
        self.at_work = 0
        self.may_work = asyncio.Event()

    async def __call__(self, client: Client) -> None:
        messages = [ASKED]
        for _ in range(self.num_calls):
            self.at_work += 1
            await self.may_work.wait()
            self.at_work -= 1
            said = await client.say(messages)
            messages = [*messages, {"role": "assistant", "content": said["content"]}, NEXT]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not is_so():
            await asyncio.sleep(0)


async def play(run: Played, group: Group) -> list[Trajectory]:
    return [trajectory async for trajectory in run.player.run(group)]


def drain_of(run: Played) -> Drain:
    generator = run.player.recorder.generator
    run.queue._changed = run.player.waits.notify
    return Drain(run.queue, generator.fleet, generator, run.player.waits)


async def test_a_drain_waits_for_agents_that_were_started_and_no_other_one_starts(tmp_path: Path) -> None:
    agent = Worker()
    async with agents_on(tmp_path, agent, counted, samples=2, max_agents=3) as run:
        drain, router = drain_of(run), run.player.recorder.generator.fleet.router
        first = asyncio.create_task(play(run, run.group))
        await until(lambda: agent.at_work == 2)
        router.start_drain()
        other = run.queue.admit(make_task(1))
        second = asyncio.create_task(play(run, other))
        await until(lambda: "before which none begins" in run.player.waits.describe_waits())
        # No request, no token: still it is waited for.
        assert router.num_in_flight == 0 and not run.group.num_tokens() and not drain.is_idle()
        agent.may_work.set()
        assert len(await first) == 2 and drain.is_idle()
        assert run.programs.num_started == 2 and not other.num_tokens()
        router.open_gate()
        run.player.waits.notify()
        assert len(await second) == 2


async def test_agents_that_wait_for_a_place_do_not_block_a_drain(tmp_path: Path) -> None:
    # The older group has all places but one and no token yet; the younger one has begun with the last.
    slow, quick = Worker(num_calls=1), Worker(num_calls=1)
    quick.may_work.set()
    agents = iter([slow, slow, quick, quick])
    async with agents_on(
        tmp_path, lambda client: next(agents)(client), counted, samples=2, max_agents=3
    ) as run:
        drain, router = drain_of(run), run.player.recorder.generator.fleet.router
        run.engine.hold()
        other = run.queue.admit(make_task(1))
        plays = [asyncio.create_task(play(run, group)) for group in (run.group, other)]
        await until(lambda: slow.at_work == 2 and run.engine.num_running == 1)
        assert run.player.num_waiting == 1
        router.start_drain()
        run.engine.release()
        slow.may_work.set()
        async with asyncio.timeout(300):
            assert [len(await each) for each in plays] == [2, 2]
        assert drain.is_idle()


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_the_end_of_a_run_ends_agents_at_work(tmp_path: Path, is_stopped: bool) -> None:
    agent = Worker()
    async with agents_on(tmp_path, agent, counted, samples=2) as run:
        work = asyncio.create_task(play(run, run.group))
        await until(lambda: agent.at_work == 2)
        run.player.state.stop() if is_stopped else run.player.state.end_training()
        assert await work == [] and run.group.state is GroupState.OPEN and not run.player.num_running


async def test_a_call_while_nothing_may_stream_waits_and_costs_an_agent_no_time(tmp_path: Path) -> None:
    agent = Worker()
    async with agents_on(tmp_path, agent, counted) as run:
        work = asyncio.create_task(play(run, run.group))
        await until(lambda: agent.at_work == 1)
        # As when the servers sleep.
        run.player.state.hold_streams()
        agent.may_work.set()
        generator = run.player.recorder.generator
        await until(lambda: generator.num_waiting == 1)
        (session,) = run.player._sessions
        assert session.has_call() and not run.player.is_answering_in_time()
        own = session.own_seconds()
        await asyncio.sleep(0.01)
        assert session.own_seconds() == own and not run.engine.bodies
        run.player.state.release_streams()
        assert len(await work) == 1


async def test_the_watchdog_leaves_an_agent_its_time_and_a_wait_for_it_is_named(tmp_path: Path) -> None:
    agent = Worker(num_calls=1)
    async with agents_on(tmp_path, agent, counted) as run:
        player = run.player
        assert not player.is_answering_in_time() and player.num_answered() == 0
        work = asyncio.create_task(play(run, run.group))
        await until(lambda: agent.at_work == 1)
        assert player.is_answering_in_time()
        await until(lambda: "waits for its agent, which works by itself" in player.waits.describe_waits())
        assert re.fullmatch(r"for 1 agents: \d+ s", str(_answers_wait(player.waits.pending)))
        run.engine.hold()
        agent.may_work.set()
        await until(lambda: run.engine.num_running == 1)
        assert not player.is_answering_in_time()
        # In a run, each token does.
        player.waits.notify()
        await until(lambda: "waits for its agent, which is asking the model" in player.waits.describe_waits())
        run.engine.release()
        await work
        # A call and an end.
        assert player.num_answered() == 2


async def test_metrics_say_what_agents_did_since_the_last_step(tmp_path: Path) -> None:
    crashes = iter([True])

    async def branches_once_and_crashes_once(client: Client) -> None:
        await client.say([ASKED])
        await client.say([NEXT])
        if next(crashes, False):
            raise RuntimeError("no network")

    async with agents_on(tmp_path, branches_once_and_crashes_once, counted, samples=2) as run:
        meter = AgentMeter(run.player, run.queue)
        assert set(meter.read().values()) == {0, None}
        ended = await run.play()
        found = meter.read()
        assert (found["agent_faults"], found["agent_restarts"], found["agents_late"]) == (1, 1, 0)
        seconds = (found["agent_seconds_p50"], found["agent_seconds_p99"])
        assert all(value is not None and value >= 0 for value in seconds)
        assert (found["agents_running"], found["agents_waiting"]) == (0, 0)
        metrics = RunMetrics("t", Notebook(), run.queue, None, SimpleNamespace(), None, run.player)  # type: ignore[arg-type]
        scraped = text([*metrics._of_agents(run.player)]).splitlines()
        assert {'asyncrl_agents{state="running"} 0', "asyncrl_agent_faults_total 1"} <= set(scraped)
        listed = re.findall(r"`asyncrl_(agent\w+)`", (ROOT / "docs" / "trackers.md").read_text())
        assert set(listed) == {
            line.split()[2].removeprefix("asyncrl_") for line in scraped if "# TYPE" in line
        }
        # Told once.
        later = meter.read()
        assert later.pop("causes").startswith("agents that crashed: 1 (the first: ")
        assert set(later.values()) == {0, None}
        for trajectory in ended:
            run.group.scores[trajectory.trajectory_id] = object()  # type: ignore[assignment]
        assert agent_calls([run.group]) == {"agent_calls_mean": 2.0, "agent_branches_mean": 1.0}
        assert agent_calls([]) == {"agent_calls_mean": None, "agent_branches_mean": None}


async def test_agents_at_work_and_those_that_wait_are_counted_and_so_is_what_is_refused(
    tmp_path: Path,
) -> None:
    agent = Worker(num_calls=3)
    async with agents_on(tmp_path, agent, counted, samples=3, max_agents=1, max_calls=2) as run:
        meter = AgentMeter(run.player, run.queue)
        work = asyncio.create_task(run.play())
        await until(lambda: agent.at_work == 1)
        found = meter.read()
        assert (found["agents_running"], found["agents_waiting"]) == (1, 2)
        assert "a place among the agents (agent.max_agents is 1)" in run.player.waits.describe_waits()
        agent.may_work.set()
        assert len(await work) == 3
        assert meter.read()["agent_refused_calls"] == 3


async def asks_for_json(client: Client) -> None:
    with contextlib.suppress(Refused):
        await client.say([ASKED], response_format={"type": "json_object"})


async def asks_another_path(client: Client) -> None:
    with contextlib.suppress(Refused):
        await client.ask("POST", "/embeddings", {})


async def makes_no_call(client: Client) -> None:
    pass


async def replies_after_a_refusal(client: Client) -> None:
    await asks_for_json(client)
    await client.say([ASKED])


@pytest.mark.parametrize(
    ("agent", "column", "words"),
    [
        (asks_for_json, "agents_refused", "400: response_format constrains what is sampled"),
        (asks_another_path, "agents_refused", "404: POST /v1/embeddings is not served"),
        (makes_no_call, "agents_without_call", "agents without a call of the model: 1 (the first: "),
        (replies_after_a_refusal, "agents_replied", "refused calls of agents: 1 (the first: 400: "),
    ],
)
async def test_each_ending_of_an_agent_has_its_count_and_its_first_example(
    agent: Agent, column: str, words: str, tmp_path: Path
) -> None:
    async with agents_on(tmp_path, agent, counted) as run:
        await run.play()
        found = AgentMeter(run.player, run.queue).read()
        assert {name: found[name] for name in ENDINGS if found[name]} == {column: 1}
        assert words in found["causes"]
