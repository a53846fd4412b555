"""What the pool remembers: by everything that decides, within bounds, and nothing that was luck."""

import os
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from verifiers.cache import ReferenceDigests, VerdictCache, part_digest
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict, correct, fault, over_limit, wrong

OWN = """
import os, threading, time
from verifiers.verdict import Outcome, Verdict, over_limit

class Forgetful:
    '''Its key is the response alone. Says in `extracted` which run this was.'''
    def __init__(self, suffix="", log=""):
        self._suffix, self._log = suffix, log
    def parse_reference(self, raw):
        return Unpicklable() if raw == "lock" else Restless() if raw == "restless" else raw
    def cache_key(self, response, reference):
        return response
    def verify(self, response, reference):
        with open(self._log, "a") as log:
            log.write("x")
        if response == "spin":
            while True: pass
        if response == "memory":
            bytearray(1 << 40)
        if response == "late":
            return over_limit("late")
        same = response == str(reference) + self._suffix
        return Verdict(Outcome.CORRECT if same else Outcome.WRONG, float(same))

class Waiting(Forgetful):
    async def verify_async(self, response, reference):
        return None if response == "nothing" else self.verify(response, reference)

class Deep(Forgetful):
    def cache_key(self, response, reference):
        return self.cache_key(response, reference)

class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()
    def __str__(self):
        return "lock"

class Restless:
    '''Pickles differently each time.'''
    def __reduce__(self):
        return (str, (f"restless{time.perf_counter_ns()}",))
"""


Ask = Callable[..., Awaitable[Verdict]]


async def with_pool(folder: Path, work: Callable[[Ask, VerifierPool], Awaitable[None]], **limits: Any) -> int:
    """How many verifications were run and not remembered."""
    log = folder / "log"
    log.touch()
    async with VerifierPool(1, 0.5, **limits) as pool:

        async def ask(response: str, gold: object, name: str = "Forgetful", **options: object) -> Verdict:
            options["log"] = str(log)
            verifier = f"./own.py:{name}"
            reference = pool.parse_reference(verifier, options, gold, folder=folder)
            return await pool.verify(verifier, options, response, reference, folder=folder)

        await work(ask, pool)
    return len(log.read_text())


async def test_a_verifier_that_forgets_the_reference_in_its_key_gets_no_verdict_of_another_reference(
    folder: Path,
) -> None:
    async def work(ask: Ask, pool: VerifierPool) -> None:
        for name in ("Forgetful", "Waiting"):
            for _ in range(2):
                assert (await ask("2", 2, name)).outcome is Outcome.CORRECT
                assert (await ask("2", 100, name)).outcome is Outcome.WRONG
                # 1 and True are equal in Python, and different golds.
                assert (await ask("1", 1, name)).outcome is Outcome.CORRECT
                assert (await ask("1", True, name)).outcome is Outcome.WRONG
        assert pool.num_cached == 8

    assert await with_pool(folder, work) == 8


async def test_options_and_an_edited_source_file_have_verdicts_of_their_own(folder: Path) -> None:
    async def work(ask: Ask, pool: VerifierPool) -> None:
        assert (await ask("2", 2)).outcome is Outcome.CORRECT
        assert (await ask("2", 2, suffix="x")).outcome is Outcome.WRONG
        assert pool.num_cached == 0
        file = folder / "own.py"
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
        await ask("2", 2)
        assert pool.num_cached == 0
        await ask("2", 2)
        assert pool.num_cached == 1

    await with_pool(folder, work)


@pytest.mark.parametrize("response", ["spin", "memory", "late"])
async def test_a_verdict_by_a_limit_is_not_remembered(folder: Path, response: str) -> None:
    async def work(ask: Ask, pool: VerifierPool) -> None:
        for _ in range(2):
            verdict = await ask(response, 1)
            # On a machine so busy that the worker gets no CPU time, "spin" is a fault.
            assert verdict.outcome is Outcome.FAULT or (
                verdict.outcome is Outcome.WRONG and not verdict.is_repeatable
            )
        assert pool.num_cached == len(pool._cache) == 0

    assert await with_pool(folder, work) >= 2


@pytest.mark.parametrize("gold", ["lock", "restless"])
async def test_a_reference_that_cannot_be_pickled_twice_alike_is_not_cached(folder: Path, gold: str) -> None:
    async def work(ask: Ask, pool: VerifierPool) -> None:
        for _ in range(2):
            assert (await ask(gold, gold, "Waiting")).outcome in (Outcome.CORRECT, Outcome.WRONG)
        assert len(pool._cache) == 0

    assert await with_pool(folder, work) == 2


async def test_a_verifier_that_waits_and_gives_nothing_is_a_fault(folder: Path) -> None:
    async def work(ask: Ask, pool: VerifierPool) -> None:
        nothing = await ask("nothing", 1, "Waiting")
        assert nothing.outcome is Outcome.FAULT and "expected a Verdict" in nothing.detail

    await with_pool(folder, work)


async def test_a_key_that_is_too_deep_leaves_the_verdict_to_verify(folder: Path) -> None:
    async def work(ask: Ask, pool: VerifierPool) -> None:
        assert (await ask("deep", "deep", "Deep")).outcome is Outcome.CORRECT

    await with_pool(folder, work)


def key(number: int) -> bytes:
    return number.to_bytes(32)


def test_the_cache_drops_what_was_used_least_recently_and_counts_its_bytes() -> None:
    cache = VerdictCache(max_entries=100, max_bytes=5_000)
    for number in range(3):
        cache.put(key(number), wrong(extracted="x" * 1000))
    assert cache.get(key(0)) is not None
    cache.put(key(3), wrong(extracted="x" * 1000))
    # Four of about 1,600 bytes are too many: number 1 was used least recently.
    assert [cache.get(key(number)) is not None for number in range(4)] == [True, False, True, True]
    held = cache.num_bytes
    cache.put(key(3), wrong(extracted="x" * 1000))
    assert cache.num_bytes == held <= 5_000
    cache.put(key(4), wrong(extracted="x" * 10_000))
    assert cache.get(key(4)) is None and len(cache) == 3
    few = VerdictCache(max_entries=2, max_bytes=1 << 20)
    for number in range(5):
        few.put(key(number), correct())
    assert len(few) == 2


def test_the_cache_takes_no_fault_and_nothing_that_was_luck() -> None:
    cache = VerdictCache(max_entries=9, max_bytes=1 << 20)
    cache.put(key(0), fault("the sandbox failed"))
    cache.put(key(1), over_limit("late"))
    assert len(cache) == 0


@dataclass(frozen=True)
class Frozen:
    tests: tuple[Any, ...]


@dataclass(frozen=True)
class Counted:
    num_pickled: ClassVar[int] = 0
    text: str

    def __getstate__(self) -> dict[str, str]:
        Counted.num_pickled += 1
        return {"text": self.text}


@dataclass
class Open:
    tests: list[Any] = field(default_factory=list)


def test_a_reference_that_changes_gets_another_digest() -> None:
    digests = ReferenceDigests()
    for reference, members in ((o := Open([1]), o.tests), (f := Frozen(([1],)), f.tests[0])):
        first = digests.digest(reference)
        assert first == digests.digest(reference) is not None
        members.append(2)
        assert digests.digest(reference) != first
    assert not digests._watched and not digests._held


def test_a_large_reference_that_cannot_change_is_pickled_for_one_digest_and_not_kept_alive() -> None:
    digests, reference = ReferenceDigests(), Counted("1" * 1_000_000)
    assert digests.digest(reference) == digests.digest(reference) is not None
    # Twice for the first digest, to see that it is the same each time.
    assert Counted.num_pickled == 2
    alive = weakref.ref(reference)
    del reference
    assert alive() is None and not digests._watched


@pytest.mark.parametrize("part", [object(), [1], (1, [2]), Open(), lambda: 1, float])
def test_a_key_whose_digest_could_mean_something_else_is_none(part: Any) -> None:
    assert part_digest(part) is None


def test_parts_that_python_calls_equal_but_are_not_have_digests_apart() -> None:
    parts = [1, True, 1.0, "1", b"1", (1,), ((1,),), frozenset({1}), None, "\ud800"]
    assert len({part_digest(part) for part in parts}) == len(parts)


def test_a_verdict_with_rewards_for_parts_of_its_response_is_not_kept_for_others() -> None:
    cache = VerdictCache(max_entries=9, max_bytes=1 << 20)
    cache.put(b"span", Verdict(Outcome.CORRECT, 1.0, spans=((0, 1, 0.5),)))
    cache.put(b"turn", Verdict(Outcome.CORRECT, 1.0, turn_rewards=(0.5,)))
    cache.put(b"plain", Verdict(Outcome.CORRECT, 1.0))
    assert [cache.get(key) for key in (b"span", b"turn")] == [None, None] and cache.get(b"plain")
