"""A verifier gets the task where it asks for it, with its conversation; no verdict serves another task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from verifiers.contract import check_contract
from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.task import Task, takes_task, with_task

OWN = """
from verifiers.verdict import correct, wrong

class Base:
    takes_any_gold = True
    def parse_reference(self, raw): return raw

class Third(Base):
    def verify(self, response, reference, about):
        return correct(detail=f"{response} to {about.prompt} of {about.row}")

class Named(Base):
    def verify(self, response, reference, strict=True, *, task):
        return correct(detail=f"{response} to {task.prompt}, {len(task.turns)} turns, {strict}")

class Plain(Base):
    def verify(self, response, reference, strict=True):
        return correct(detail=f"strict {strict}")

class Fast(Base):
    def verify_fast(self, response, reference, task): return correct(detail=f"fast, {task.prompt}")
    def verify(self, response, reference): return wrong()

class Waits(Base):
    def verify(self, response, reference): return wrong()
    async def verify_async(self, response, reference, task): return correct(detail=f"awaited, {task.prompt}")

class Keyed(Base):
    def cache_key(self, response, reference): return ("same",)
    def verify(self, response, reference, task): return correct(detail=f"{task.prompt} {task.turns}")

class Agrees(Base):
    def cache_key(self, response, reference, task): return task.turns
    def verify_fast(self, response, reference, task):
        return None if task.turns == ("",) else self.verify(response, reference, task)
    def verify(self, response, reference, task): return correct() if task.turns[0].strip() else wrong()

class Disagrees(Agrees):
    def verify_fast(self, response, reference, task): return wrong(detail=task.prompt)
"""


def asked(prompt: str, **more: Any) -> Callable[[], Task]:
    return lambda: Task(prompt, **more)


async def test_a_verifier_takes_the_task_by_a_third_parameter_or_by_name(folder: Path) -> None:
    task = asked("1+1", row={"level": 2}, turns=("two",))
    found = {}
    async with VerifierPool(1) as pool:
        for name in ("Third", "Named", "Plain", "Fast", "Waits"):
            found[name] = await pool.verify(f"./own.py:{name}", {}, "2", "gold", folder=folder, task=task)
    assert {name: verdict.detail for name, verdict in found.items()} == {
        "Third": "2 to 1+1 of {'level': 2}",
        "Named": "2 to 1+1, 1 turns, True",
        "Plain": "strict True",
        "Fast": "fast, 1+1",
        "Waits": "awaited, 1+1",
    }


async def test_a_part_of_a_weighted_verifier_gets_the_task(folder: Path) -> None:
    parts = {"parts": ["exact", "./own.py:Third"]}
    assert takes_task(load_verifier("weighted", parts, folder=folder))
    assert not takes_task(load_verifier("weighted", {"parts": ["exact"]}, folder=folder))
    async with VerifierPool(1) as pool:
        reference = pool.parse_reference("weighted", parts, "2", folder=folder)
        verdict = await pool.verify("weighted", parts, "2", reference, folder=folder, task=asked("1+1"))
    assert "2 to 1+1 of {}" in verdict.detail


async def test_a_verdict_on_one_task_is_not_given_to_another(folder: Path) -> None:
    tasks = [asked("1+1"), asked("2+2"), asked("1+1", turns=("a", "b")), asked("1+1")]
    async with VerifierPool(1) as pool:
        found = [
            (await pool.verify("./own.py:Keyed", {}, "r", "gold", folder=folder, task=task)).detail
            for task in tasks
        ]
        assert found == ["1+1 ()", "2+2 ()", "1+1 ('a', 'b')", "1+1 ()"]
        assert pool.num_cached == 1


async def test_no_task_is_made_for_a_verifier_that_does_not_take_it() -> None:
    def made() -> Task:
        raise AssertionError("made")

    async with VerifierPool(1) as pool:
        reference = pool.parse_reference("math", {}, "2")
        assert (await pool.verify("math", {}, "\\boxed{2}", reference, task=made)).outcome.value == "correct"


async def test_the_contract_covers_verifiers_that_take_the_task(folder: Path) -> None:
    for name, passes in (("Agrees", True), ("Disagrees", False)):
        checks = await check_contract(f"./own.py:{name}", {}, ["gold"], folder=folder)
        assert all(check.passed for check in checks) is passes, checks


def test_a_method_of_two_parameters_is_called_with_two() -> None:
    class Odd:
        takes_task = False

        def verify(self, response: str, reference: str, *more: object) -> tuple[object, ...]:
            return response, reference, *more

    assert with_task(Odd().verify)("r", "g", Task()) == ("r", "g")
    assert not takes_task(Odd())


def test_a_conversation_is_told_in_order() -> None:
    first, answer = {"role": "user", "content": "Play."}, {"role": "user", "content": "You lost."}
    told = Task("<s>Play.", (first,), {}, ("rock", "paper"), ((answer,),))
    assert told.question() == "Play."
    assert told.conversation() == [
        first,
        {"role": "assistant", "content": "rock"},
        answer,
        {"role": "assistant", "content": "paper"},
    ]
    assert Task("1+1=", turns=("2",)).conversation()[0] == {"role": "user", "content": "1+1="}
