"""A group-wise verifier judges all responses at once, in a worker with its limits; what keeps it from its
answer is a fault of them all, and never a wrong answer."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verifiers.judgement import is_group_wise, min_responses
from verifiers.own import Gold
from verifiers.pool import MAX_RESPONSE_CHARACTERS, VerifierPool
from verifiers.registry import load_verifier
from verifiers.task import Task, takes_task
from verifiers.verdict import Outcome

GROUPS = """
import asyncio, os, signal, time
from verifiers.verdict import Verdict, Outcome, correct, fault, wrong

class Longest:
    '''Right is what no other response is longer than.'''
    caches_groups = True
    def __init__(self, then=""):
        self.then = then
    def parse_reference(self, raw):
        if raw == "bad": raise ValueError("no gold")
        return raw
    def verify_group(self, responses, reference):
        match self.then:
            case "spin":
                while True: pass
            case "sleep": time.sleep(1000)
            case "raise": raise KeyError("no")
            case "exit": os._exit(3)
            case "killed": os.kill(os.getpid(), signal.SIGKILL)
            case "memory": raise MemoryError
            case "deep": raise RecursionError
            case "few": return [correct()]
            case "none": return None
            case "text": return "ab"
            case "other": return [correct(), 0.5]
            case "first": return [fault("not this one"), correct()]
            case "once":
                # A file tells the attempts apart.
                try: open(reference, "x").close()
                except FileExistsError: pass
                else: raise RuntimeError("the first attempt")
        most = max(map(len, responses))
        note = f"{os.getpid()} {time.perf_counter()} {reference}"
        return [correct(detail=note) if len(text) == most else wrong(detail=note) for text in responses]

class Compares(Longest):
    min_responses = 2

class Both(Compares):
    def verify(self, response, reference):
        return correct(detail="alone")

class WithTasks(Longest):
    def verify_group(self, responses, reference, tasks):
        return [correct(detail=f"{text} {task.prompt} {task.turns}") for text, task in zip(responses, tasks)]

class Named(Longest):
    def verify_group(self, responses, reference, *, tasks):
        return [correct(detail=task.prompt) for task in tasks]

class Waits(Longest):
    async def verify_group_async(self, responses, reference):
        await asyncio.sleep(0)
        return self.verify_group(responses, reference)

class Changes(Longest):
    def verify_group(self, responses, reference):
        while len(responses) > 1: responses.pop()
        return [correct()]

class NoNumber(Longest):
    min_responses = "two"
"""
PAIR = ["a", "bb"]


def named(name: str) -> str:
    return f"./groups.py:{name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "groups.py").write_text(GROUPS)
    return tmp_path


def outcomes(verdicts: Sequence[Any]) -> list[str]:
    return [verdict.outcome.value for verdict in verdicts]


@pytest.mark.parametrize("name", ["Longest", "Compares", "Both", "Waits"])
async def test_each_response_gets_its_verdict_in_order(folder: Path, name: str) -> None:
    async with VerifierPool(timeout_seconds=20) as pool:
        found = await pool.judge_group(named(name), {}, ["a", "ccc", "bb"], Gold("g"), folder=folder)
    assert outcomes(found.verdicts) == ["wrong", "correct", "wrong"]
    process, _, reference = found.verdicts[0].detail.split()
    assert reference == "g" and (process == str(os.getpid())) is (name == "Waits")
    assert found.faults == () and len({verdict.seconds for verdict in found.verdicts}) == 1


@pytest.mark.parametrize("name", ["Longest", "Waits"])
@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("raise", "KeyError"),
        ("few", "returned 1 verdicts for 2 responses"),
        ("none", "returned NoneType, expected a list"),
        ("text", "returned str, expected a list"),
        ("deep", "RecursionError"),
    ],
)
async def test_a_verifier_without_an_answer_is_a_fault_of_the_group(
    folder: Path, name: str, then: str, said: str
) -> None:
    if (name, then) == ("Longest", "deep"):
        said = "recursion limit"
    async with VerifierPool(timeout_seconds=20) as pool:
        found = await pool.judge_group(named(name), {"then": then}, PAIR, Gold("g"), folder=folder)
    assert outcomes(found.verdicts) == ["fault", "fault"]
    assert [verdict.detail for verdict in found.verdicts if said not in verdict.detail] == []
    # A limit is the same the next time; all else was tried twice.
    assert len(found.faults) == (0 if said == "recursion limit" else 1)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("spin", "timeout: "),
        ("memory", "memory limit"),
        ("exit", "with exit code 3"),
        ("killed", "SIGKILL"),
    ],
)
async def test_limits_and_deaths_are_faults_of_the_group(folder: Path, then: str, said: str) -> None:
    """Which response is to blame is not known: none is found wrong for it."""
    async with VerifierPool(timeout_seconds=0.2) as pool:
        found = await pool.judge_group(named("Longest"), {"then": then}, PAIR, Gold("g"), folder=folder)
        assert outcomes(found.verdicts) == ["fault", "fault"]
        assert [verdict.detail for verdict in found.verdicts if said not in verdict.detail] == []
        after = await pool.judge_group(named("Longest"), {}, PAIR, Gold("g"), folder=folder)
        assert after.has_failed() is False


async def test_a_fault_among_the_verdicts_is_that_responses_alone(folder: Path) -> None:
    async with VerifierPool(timeout_seconds=20) as pool:
        for then in ("first", "other"):
            found = await pool.judge_group(named("Longest"), {"then": then}, PAIR, Gold("g"), folder=folder)
            assert sorted(outcomes(found.verdicts)) == ["correct", "fault"] and not found.faults
        assert "returned float" in found.verdicts[1].detail


async def test_a_fault_of_the_group_is_tried_again_and_told(folder: Path) -> None:
    async with VerifierPool(timeout_seconds=20) as pool:
        gold = Gold(str(folder / "tried"))
        found = await pool.judge_group(named("Longest"), {"then": "once"}, PAIR, gold, folder=folder)
    assert outcomes(found.verdicts) == ["wrong", "correct"]
    assert ["the first attempt" in fault.detail for fault in found.faults] == [True]


async def test_a_response_alone_is_a_group_of_one_unless_the_verifier_compares(folder: Path) -> None:
    async with VerifierPool(timeout_seconds=20) as pool:
        alone = await pool.verify(named("Longest"), {}, "a", Gold("g"), folder=folder)
        assert alone.outcome is Outcome.CORRECT
        compared = await pool.judge(named("Compares"), {}, "a", Gold("g"), folder=folder)
        assert compared.verdict.outcome is Outcome.FAULT and not compared.faults
        assert "compares at least 2 responses, there are 1" in compared.verdict.detail
        assert (await pool.verify(named("Both"), {}, "a", Gold("g"), folder=folder)).detail == "alone"
        with pytest.raises(ValueError, match="judges one response at a time"):
            await pool.judge_group("math", {}, PAIR, "1")


async def test_a_group_is_cached_by_all_that_decides(folder: Path) -> None:
    async def note(pool: VerifierPool, responses: list[str], gold: str, name: str = "Longest") -> str:
        found = await pool.judge_group(named(name), {}, responses, Gold(gold), folder=folder)
        return found.verdicts[0].detail

    async with VerifierPool(timeout_seconds=20) as pool:
        first = await note(pool, PAIR, "g")
        assert await note(pool, PAIR, "g") == first and pool.num_cached == 2
        others = [
            await note(pool, PAIR[::-1], "g"),
            await note(pool, [*PAIR, "b"], "g"),
            await note(pool, PAIR, "h"),
            await note(pool, PAIR, "g", "Compares"),
        ]
        assert first not in others and pool.num_cached == 2


@pytest.mark.parametrize("name", ["WithTasks", "Named"])
async def test_a_group_may_take_the_tasks_of_its_responses(folder: Path, name: str) -> None:
    assert takes_task(load_verifier(named(name), {}, folder=folder))
    assert not takes_task(load_verifier(named("Longest"), {}, folder=folder))
    tasks = [Task("p", turns=("x", "a")), Task("q", turns=("bb",))]
    async with VerifierPool(timeout_seconds=20) as pool:
        asked = (named(name), {}, PAIR, Gold("g"))
        found = await pool.judge_group(*asked, folder=folder, tasks=lambda: tasks)
        again = await pool.judge_group(*asked, folder=folder, tasks=lambda: tasks[::-1])
    details = [verdict.detail for verdict in found.verdicts]
    assert details == (["a p ('x', 'a')", "bb q ('bb',)"] if name == "WithTasks" else ["p", "q"])
    # The tasks are part of the cache's key.
    assert again.verdicts[0].detail != details[0]


async def test_texts_arrive_as_they_are_and_a_verifier_cannot_change_the_group(folder: Path) -> None:
    odd = ["\ud83d\ude00", "\x00", "a" * (MAX_RESPONSE_CHARACTERS + 1)]
    async with VerifierPool(timeout_seconds=20) as pool:
        found = await pool.judge_group(named("Longest"), {}, odd, Gold("g"), folder=folder)
        assert outcomes(found.verdicts) == ["correct", "wrong", "wrong"]
        assert "more than" in found.verdicts[2].detail
        changed = await pool.judge_group(named("Changes"), {}, PAIR, Gold("g"), folder=folder)
        assert changed.has_failed() and "1 verdicts for 2" in changed.verdicts[0].detail


def test_the_fewest_responses_are_a_number(folder: Path) -> None:
    with pytest.raises(ValueError, match="min_responses of the verifier is 'two'"):
        load_verifier(named("NoNumber"), {}, folder=folder)
    assert min_responses(load_verifier("math")) == 1 and not is_group_wise(load_verifier("math"))


def test_a_verifier_of_groups_is_no_part_of_a_weighted_one_unless_it_judges_alone_too(folder: Path) -> None:
    with pytest.raises(ValueError, match="judges whole groups, and can be no part"):
        load_verifier("weighted", {"parts": [named("Longest")]}, folder=folder)
    both = load_verifier("weighted", {"parts": [named("Both")]}, folder=folder)
    assert both.verify("a", ("g",)).score == 1.0
