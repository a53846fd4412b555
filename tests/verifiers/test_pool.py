"""The pool with real processes: nothing hangs it, nothing is lost, no process stays; and what a verifier
must load is loaded once, before workers are forked, and outside of their time limit."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.processes import descendants, wait_for_end

from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict

ROOT = Path(__file__).parents[2]

OWN = """
import os, time
from verifiers.verdict import Outcome, Verdict
from verifiers.verifier import VerifierUnavailable

class Odd:
    '''Does what the response says.'''
    def parse_reference(self, raw):
        return raw
    def verify(self, response, reference):
        match response.split():
            case ["sleep", seconds]: time.sleep(float(seconds))
            case ["spin"]:
                while True: pass
            case ["raise"]: raise KeyError("a bug")
            case ["unavailable"]: raise VerifierUnavailable("the server is away")
            case ["nothing"]: return None
            case ["pid"]: return Verdict(Outcome.CORRECT, 1.0, extracted=str(os.getpid()))
        return Verdict(Outcome.CORRECT, 1.0, extracted=response)

class Patient(Odd):
    '''Keeps a limit of its own.'''
    pool_timeout_seconds = 0.5
"""


@asynccontextmanager
async def pool_of(
    workers: int = 1, timeout_seconds: float = 1.0, **limits: int
) -> AsyncIterator[VerifierPool]:
    async with VerifierPool(workers, timeout_seconds, **limits) as pool:
        yield pool


async def ask(
    folder: Path, *responses: str, name: str = "Odd", reference: Any = None, **limits: Any
) -> list[Verdict]:
    async with pool_of(**limits) as pool:
        jobs = [pool.verify(f"./own.py:{name}", {}, text, reference, folder=folder) for text in responses]
        return list(await asyncio.gather(*jobs))


async def test_a_late_response_is_wrong_and_its_neighbours_are_not_touched(folder: Path) -> None:
    verdicts = await ask(folder, "a", "spin", "b", "spin", "c", timeout_seconds=0.5)
    assert [verdict.outcome.value for verdict in verdicts] == ["correct", "wrong"] * 2 + ["correct"]
    assert "timeout" in verdicts[1].detail
    assert verdicts[1].seconds > 0.4


async def test_a_verifier_that_fails_is_a_fault_and_says_how(folder: Path) -> None:
    bug, away, nothing = await ask(folder, "raise", "unavailable", "nothing")
    assert bug.outcome is Outcome.FAULT and "KeyError: 'a bug'" in bug.detail
    assert away.outcome is Outcome.FAULT and away.detail == "the server is away"
    assert nothing.outcome is Outcome.FAULT and "expected a Verdict" in nothing.detail
    assert all(verdict.score is None for verdict in (bug, away, nothing))


async def test_waiting_without_using_the_cpu_is_not_held_against_the_response(folder: Path) -> None:
    # 0.5 s of sleep against a limit of 0.4 s: no CPU time was used, so the deadline moves, to 2 s at most.
    slept, too_long = await ask(folder, "sleep 0.5", "sleep 60", timeout_seconds=0.4)
    assert slept.outcome is Outcome.CORRECT
    assert too_long.outcome is Outcome.FAULT and "overloaded" in too_long.detail


async def test_a_verifier_with_its_own_limit_that_is_late_is_a_fault(folder: Path) -> None:
    late, spun = await ask(folder, "sleep 60", "spin", name="Patient", timeout_seconds=0.1)
    assert late.outcome is Outcome.FAULT and "did not answer in 0.5 s" in late.detail
    assert spun.outcome is Outcome.FAULT


async def test_workers_are_recycled(folder: Path) -> None:
    verdicts = await ask(folder, *["pid"] * 6, recycle_after=2)
    assert len({verdict.extracted for verdict in verdicts}) == 3


async def test_cancelling_one_verification_leaves_the_pool_usable(folder: Path) -> None:
    async with pool_of(1, 5.0) as pool:
        job = asyncio.ensure_future(pool.verify("./own.py:Odd", {}, "spin", None, folder=folder))
        done, _ = await asyncio.wait({job}, timeout=0.3)
        assert not done
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        found = await pool.verify("./own.py:Odd", {}, "a", None, folder=folder)
    assert found.outcome is Outcome.CORRECT


async def test_closing_leaves_no_process_behind(folder: Path) -> None:
    # Processes of an earlier test may still be on their way out.
    others = descendants()
    async with pool_of(2, 30.0) as pool:
        job = asyncio.ensure_future(pool.verify("./own.py:Odd", {}, "spin", None, folder=folder))
        children: set[psutil.Process] = set()
        while len(children) < 3:
            await pool.verify("./own.py:Odd", {}, "a", None, folder=folder)
            children = descendants() - others
    assert (await job).outcome is Outcome.FAULT
    assert len(children) == 3
    assert not wait_for_end(children)


async def test_closing_while_a_worker_is_being_forked_ends_that_verification_as_a_fault(folder: Path) -> None:
    async with asyncio.timeout(300):
        async with pool_of(2, 30.0) as pool:
            job = asyncio.ensure_future(pool.verify("./own.py:Odd", {}, "a", None, folder=folder))
            # One turn of the loop: the request to fork is on its way, its reply is not.
            done, _ = await asyncio.wait({job}, timeout=0)
            assert not done
        found = await job
    assert found.outcome is Outcome.FAULT


def test_workers_die_with_a_parent_that_is_killed(folder: Path) -> None:
    program = f"""
import asyncio, psutil
from pathlib import Path
from verifiers.pool import VerifierPool
folder = Path({str(folder)!r})
async def main():
    async with VerifierPool(2, 600.0) as pool:
        spin = asyncio.ensure_future(pool.verify("./own.py:Odd", {{}}, "spin", None, folder=folder))
        while len(psutil.Process().children(recursive=True)) < 3:
            await pool.verify("./own.py:Odd", {{}}, "a", None, folder=folder)
        print("ready", flush=True)
        await spin
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    children = descendants(parent.pid)
    assert len(children) == 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert not wait_for_end(children)


async def test_wrong_settings_and_wrong_use_are_refused() -> None:
    for settings in ({"num_workers": 0}, {"timeout_seconds": 0.0}, {"recycle_after": 0}):
        with pytest.raises(ValueError, match="expected"):
            VerifierPool(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not started"):
        await VerifierPool().verify("math", {}, "x", None)


HOSTILE = [
    ("regex", "(a+)+c", "a" * 60 + "b"),
    ("math", "42", "\\boxed{9^{9^{9^{9}}}}"),
    ("math", "x", "\\boxed{" + "{" * 10_000 + "}" * 10_000 + "}"),
    ("math", "\\sqrt{2}", "\\boxed{((((10000!)!)!)!)}"),
    ("math", "42", "\\boxed{" + "9" * 100_000 + "}"),
]


def mixed_jobs(count: int, hostile_share: float) -> list[tuple[str, Any, str, str | None]]:
    """(verifier, gold, response, expected outcome; None for a hostile one, which is anything but correct)."""
    source = random.Random(7)
    jobs: list[tuple[str, Any, str, str | None]] = []
    for number in range(count):
        if source.random() < hostile_share:
            name, gold, response = source.choice(HOSTILE if number % 25 == 0 else HOSTILE[1:])
            jobs.append((name, gold, response, None))
        elif source.random() < 0.5:
            value, right = source.randint(0, 10**6), source.random() < 0.5
            jobs.append(
                ("math", str(value), f"\\boxed{{{value + (not right)}}}", "correct" if right else "wrong")
            )
        else:
            a, right = source.randint(2, 10**6), source.random() < 0.5
            answer = f"(x+{a})(x-{a})" if right else f"(x+{a})(x+{a})"
            jobs.append(("math", f"x^2-{a * a}", f"\\boxed{{{answer}}}", "correct" if right else "wrong"))
    return jobs


async def run_jobs(jobs: list[tuple[str, Any, str, str | None]], workers: int) -> list[str]:
    """Complaints."""
    async with pool_of(workers, 1.0) as pool:

        async def one(name: str, gold: Any, response: str) -> Verdict:
            return await pool.verify(name, {}, response, pool.parse_reference(name, {}, gold))

        verdicts = await asyncio.gather(*(one(name, gold, response) for name, gold, response, _ in jobs))
    complaints = []
    for (name, gold, response, expected), verdict in zip(jobs, verdicts, strict=True):
        good = (
            verdict.outcome in (Outcome.WRONG, Outcome.NO_ANSWER)
            if expected is None
            else verdict.outcome == expected
        )
        if not good:
            complaints.append(f"{name} {gold} {response[:80]}: {verdict.outcome.value} ({verdict.detail})")
    return complaints


@pytest.mark.parametrize(
    "count",
    [100, pytest.param(1000, marks=pytest.mark.exhaustive), pytest.param(10_000, marks=pytest.mark.slow)],
)
async def test_hostile_verifications_among_others_lose_none_and_spoil_none(count: int) -> None:
    jobs = mixed_jobs(count, 0.05)
    # It is too rare to be among them by chance, and costs a worker.
    jobs[count // 2] = (*HOSTILE[0], None)
    assert await run_jobs(jobs, 2) == []


@pytest.mark.slow
async def test_a_worker_does_not_grow_without_bound() -> None:
    """10 000 symbolic verifications in one worker: its memory stays within 30 MB of where it
    was after 1 000."""

    sizes = []
    async with pool_of(1, 5.0, recycle_after=10**9, cache_size=1) as pool:
        for number in range(10_000):
            reference = pool.parse_reference("math", {}, f"x^2-{number}")
            await pool.verify("math", {}, f"\\boxed{{(x-{number})(x+1)}}", reference)
            if number in (1_000, 9_999):
                workers = [p for p in psutil.Process().children(recursive=True) if p.ppid() != os.getpid()]
                sizes.append(sum(p.memory_info().rss for p in workers))
    before, after = sizes
    assert after - before < 30 << 20


SLOW_NAME = "./slow.py:Slow"
SLOW = '''
import os, time
from verifiers.verdict import Outcome, Verdict, correct

LOADED = {}

class Slow:
    """Loads for longer than the time limit of one verification."""
    def parse_reference(self, raw):
        return raw
    def preparation(self, reference):
        return reference
    def prepare(self, what):
        if what == "broken":
            raise ValueError("no such library")
        end = time.process_time() + 0.6
        while time.process_time() < end:
            pass
        LOADED[what] = os.getpid()
    def verify(self, response, reference):
        if reference not in LOADED:
            self.prepare(reference)
        if response == "spin":
            while True:
                pass
        return correct(extracted=str(LOADED[reference]), detail=str(os.getpid()))
'''


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


async def ask_slow(pool: VerifierPool, slow: Path, response: str, reference: str) -> Verdict:
    return await pool.verify(SLOW_NAME, {}, response, reference, folder=slow)


async def test_loading_is_no_part_of_the_time_limit(slow: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        first = await ask_slow(pool, slow, "a", "library")
        assert first.outcome is Outcome.CORRECT
        # Loaded in another process than the one that graded: the template.
        assert first.extracted != first.detail
        assert (await ask_slow(pool, slow, "spin", "library")).outcome is Outcome.WRONG
        again = await ask_slow(pool, slow, "b", "library")
        assert (again.outcome, again.extracted) == (Outcome.CORRECT, first.extracted)


async def test_what_comes_later_is_loaded_for_workers_that_are_there(slow: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        one = await ask_slow(pool, slow, "a", "one")
        two = await ask_slow(pool, slow, "a", "two")
        assert (one.outcome, two.outcome) == (Outcome.CORRECT, Outcome.CORRECT)
        assert one.extracted == two.extracted
        # The new worker has both.
        assert (await ask_slow(pool, slow, "a", "one")).detail == two.detail


async def test_what_cannot_be_loaded_is_a_fault_that_says_why(slow: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        verdict = await ask_slow(pool, slow, "a", "broken")
        assert verdict.outcome is Outcome.FAULT
        assert "no such library" in verdict.detail
        assert (await ask_slow(pool, slow, "a", "library")).outcome is Outcome.CORRECT


async def test_a_template_that_was_killed_loads_again(slow: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        first = await ask_slow(pool, slow, "a", "one")
        (template,) = [child for child in psutil.Process().children() if str(child.pid) == first.extracted]
        os.kill(template.pid, signal.SIGKILL)
        template.wait()
        second = await ask_slow(pool, slow, "a", "two")
        assert second.outcome is Outcome.CORRECT
        assert (await ask_slow(pool, slow, "a", "one")).extracted == second.extracted != first.extracted


async def test_a_weighted_verifier_loads_what_its_parts_need(slow: Path):
    parts = [{"name": "length", "options": {"max_length": 9}, "shaping": True}, SLOW_NAME]
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        reference = pool.parse_reference("weighted", {"parts": parts}, "library", folder=slow)
        verdict = await pool.verify("weighted", {"parts": parts}, "a", reference, folder=slow)
        assert (verdict.outcome, verdict.extracted != verdict.detail) == (Outcome.CORRECT, True)
        plain = pool.parse_reference("weighted", {"parts": ["exact"]}, "a")
        assert (await pool.verify("weighted", {"parts": ["exact"]}, "a", plain)).outcome is Outcome.CORRECT
