"""Nothing of a verifier of the user's runs in the caller's event loop, and its limits hold for all of it."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from verifiers.judgement import Limit
from verifiers.own import Gold, in_thread, is_built_in
from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.verdict import Outcome

T = TypeVar("T")
OWN = """
import asyncio, os, threading, time
from verifiers.verdict import correct

def spin():
    while True: pass

class Plain:
    def parse_reference(self, raw):
        if raw == "bad": raise ValueError("no gold")
        return f"parsed {raw} in {os.getpid()}"
    def verify(self, response, reference):
        return correct(extracted=str(os.getpid()), detail=str(reference))

class Fast(Plain):
    def verify_fast(self, response, reference):
        if response == "spin": spin()
        if response == "sleep": time.sleep(1000)
        return correct(extracted=str(os.getpid()), detail="fast")

class Keyed(Plain):
    def cache_key(self, response, reference):
        if response == "spin": spin()
        if response == "raise": raise KeyError("no key")
        return response.strip()
    def verify(self, response, reference):
        return correct(extracted=f"{os.getpid()} {time.perf_counter()}")

class Prepared(Plain):
    loaded = None
    def preparation(self, reference):
        return str(os.getpid())
    def prepare(self, what):
        Prepared.loaded = what, os.getpid()
    def verify(self, response, reference):
        return correct(extracted=self.loaded[0], detail=str(self.loaded[1]))

class NeverBuilt(Plain):
    count = 0
    def __init__(self):
        NeverBuilt.count += 1
        if threading.current_thread() is threading.main_thread(): spin()

class Waits(Plain):
    async def verify_async(self, response, reference):
        if response == "block": time.sleep(1000)
        if response == "wait": await asyncio.Event().wait()
        return correct(extracted=threading.current_thread().name, detail=str(reference))
"""


def named(name: str) -> tuple[str, dict[str, Any]]:
    return f"./own.py:{name}", {}


async def turns_during(work: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """What it returns, and how often the loop turned meanwhile."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.wait({task}, timeout=0.01)
        turns += 1
    return task.result(), turns


async def test_a_fast_path_of_ones_own_runs_in_a_worker(folder: Path) -> None:
    async with VerifierPool() as pool:
        verdict = await pool.verify(*named("Fast"), "a", "", folder=folder)
        assert verdict.detail == "fast" and verdict.extracted != str(os.getpid())
        assert pool.num_fast == 0


@pytest.mark.parametrize(
    ("response", "outcome", "limit"),
    [("spin", Outcome.WRONG, Limit.TIME), ("sleep", Outcome.FAULT, None)],
)
async def test_the_limit_holds_for_a_fast_path_and_the_loop_turns_meanwhile(
    folder: Path, response: str, outcome: Outcome, limit: Limit | None
) -> None:
    async with VerifierPool(timeout_seconds=0.3) as pool:
        work = pool.judge(*named("Fast"), response, "", folder=folder)
        found, turns = await turns_during(work)
        assert (found.verdict.outcome, found.limit) == (outcome, limit)
        # One that gets too little of a busy machine is tried again.
        assert pool.num_killed == 1 + len(found.faults)
        assert limit or found.faults
    assert turns > 10


async def test_equal_keys_are_graded_once_and_the_key_is_made_in_the_worker(folder: Path) -> None:
    async with VerifierPool() as pool:
        first, second, other = [
            await pool.verify(*named("Keyed"), response, "gold", folder=folder)
            for response in ("a", " a", "b")
        ]
        assert first.extracted == second.extracted != other.extracted
        assert pool.num_cached == 1
        assert not (first.extracted or "").startswith(f"{os.getpid()} ")


async def test_a_key_that_hangs_or_raises_costs_the_response_or_is_a_fault(folder: Path) -> None:
    async with VerifierPool(timeout_seconds=0.3) as pool:
        found, turns = await turns_during(pool.judge(*named("Keyed"), "spin", "", folder=folder))
        assert (found.verdict.outcome, found.limit) == (Outcome.WRONG, Limit.TIME)
        assert turns > 10
        raised = await pool.verify(*named("Keyed"), "raise", "", folder=folder)
        assert raised.outcome is Outcome.FAULT and "KeyError: 'no key'" in raised.detail


async def test_a_gold_is_parsed_in_the_worker(folder: Path) -> None:
    async with VerifierPool() as pool:
        good, bad = [
            await pool.verify(*named("Plain"), "a", Gold(raw), folder=folder) for raw in ("7", "bad")
        ]
    assert good.detail == f"parsed 7 in {good.extracted}"
    assert bad.outcome is Outcome.FAULT and "no gold" in bad.detail


async def test_what_is_to_be_prepared_is_named_by_a_worker_and_loaded_by_the_template(folder: Path) -> None:
    async with VerifierPool() as pool:
        verdict = await pool.verify(*named("Prepared"), "a", "", folder=folder)
    assert len({verdict.extracted, verdict.detail, str(os.getpid())}) == 3


async def test_a_verifier_that_is_never_loaded_is_a_fault_of_the_verifier(folder: Path) -> None:
    async with VerifierPool(timeout_seconds=0.2, load_seconds=0.3) as pool:
        # Built in a thread here, in the main thread of a worker there.
        found, turns = await turns_during(pool.judge(*named("NeverBuilt"), "a", "", folder=folder))
    assert found.verdict.outcome is Outcome.FAULT and "more than 0.3 s" in found.verdict.detail
    assert turns > 10


async def test_a_verifier_that_blocks_instead_of_waiting_blocks_a_loop_of_its_own(folder: Path) -> None:
    async with VerifierPool() as pool:
        assert (await pool.verify(*named("Waits"), "a", Gold("7"), folder=folder)).detail.startswith(
            "parsed 7"
        )
        blocked = asyncio.ensure_future(pool.verify(*named("Waits"), "block", "", folder=folder))
        # The loop that it does not block grades on.
        for _ in range(20):
            assert (await pool.verify(*named("Plain"), "a", "", folder=folder)).outcome is Outcome.CORRECT
        assert not blocked.done()
        blocked.cancel()


async def test_closing_ends_what_is_awaited_in_that_loop_as_a_fault(folder: Path) -> None:
    async with VerifierPool() as pool:
        assert (await pool.verify(*named("Waits"), "a", "", folder=folder)).outcome is Outcome.CORRECT
        waits = asyncio.ensure_future(pool.verify(*named("Waits"), "wait", "", folder=folder))
        done, _ = await asyncio.wait({waits}, timeout=0.1)
        assert not done
    verdict = await waits
    assert verdict.outcome is Outcome.FAULT and "the pool is closed" in verdict.detail


def test_built_in_is_what_holds_nothing_else(folder: Path) -> None:
    def loaded(name: str, options: dict[str, Any] | None = None) -> object:
        return load_verifier(name, options, folder=folder)

    assert is_built_in(loaded("math"))
    assert is_built_in(loaded("weighted", {"parts": ["math", "exact"]}))
    assert not is_built_in(loaded("./own.py:Plain"))
    assert not is_built_in(
        loaded(
            "weighted", {"parts": ["math", {"name": "weighted", "options": {"parts": ["./own.py:Plain"]}}]}
        )
    )


@pytest.mark.parametrize("raised", [StopIteration("nothing"), SystemExit(1), KeyError("no")], ids=repr)
async def test_whatever_the_work_of_a_thread_raises_reaches_its_caller(raised: BaseException) -> None:
    def work() -> None:
        raise raised

    with pytest.raises((RuntimeError, SystemExit, KeyError), match="nothing|1|no"):
        async with asyncio.timeout(20):
            await in_thread(work)
