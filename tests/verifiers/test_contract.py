"""The contract kit passes the built-ins and fails a verifier that breaks a promise, saying which."""

from pathlib import Path

import pytest

from verifiers.contract import Check, check_contract

BROKEN = """
import itertools, os
from verifiers.verdict import Outcome, Verdict
RIGHT, WRONG = Verdict(Outcome.CORRECT, 1.0), Verdict(Outcome.WRONG, 0.0)

class Honest:
    def parse_reference(self, raw):
        if not isinstance(raw, str) or not raw:
            raise ValueError("expected a string")
        return raw
    def verify(self, response, reference):
        return RIGHT if reference in response else WRONG

class Raises(Honest):
    def verify(self, response, reference):
        return RIGHT if response[0] == reference else WRONG

class Hangs(Honest):
    def verify(self, response, reference):
        while response == "":
            pass
        return WRONG

class Careless(Honest):
    def parse_reference(self, raw):
        return raw.strip()

class Moody(Honest):
    verdicts = itertools.cycle([RIGHT, WRONG])
    def verify(self, response, reference):
        return next(self.verdicts)

class Unpicklable(Honest):
    def parse_reference(self, raw):
        super().parse_reference(raw)
        return lambda: raw

class Hasty(Honest):
    def verify_fast(self, response, reference):
        return RIGHT

class Forgetful(Honest):
    def cache_key(self, response, reference):
        return 1

class Leaves(Honest):
    def verify(self, response, reference):
        if "}" in response: os._exit(1)
        return super().verify(response, reference)

class LeavesFast(Honest):
    def verify_fast(self, response, reference):
        if response == "so \\\\boxed{42}": os._exit(1)
        return None

class Lenient(Honest):
    def verify(self, response, reference):
        return RIGHT
"""


async def checks(tmp_path: Path, name: str) -> dict[str, Check]:
    (tmp_path / "own.py").write_text(BROKEN)
    found = await check_contract(
        f"./own.py:{name}", {}, ["42"], folder=tmp_path, right=[("42", "so 42")], wrong=[("42", "so 43")]
    )
    return {check.promise: check for check in found}


async def test_an_honest_verifier_keeps_every_promise(tmp_path: Path) -> None:
    found = await checks(tmp_path, "Honest")
    assert [check for check in found.values() if not check.passed] == []


@pytest.mark.parametrize(
    ("name", "promise", "detail"),
    [
        ("Raises", "no response makes it raise, hang or fault", "IndexError"),
        ("Hangs", "no response makes it raise, hang or fault", "timeout"),
        ("Leaves", "no response makes it raise, hang or fault", "exit code 1"),
        # Of all promises only this one calls it with that response: in a worker, or the test would end here.
        ("LeavesFast", "verify_fast and cache_key agree with verify", "exit code 1"),
        ("Careless", "parse_reference raises nothing but ValueError", "AttributeError"),
        ("Moody", "the same response gets the same verdict", "then"),
        ("Unpicklable", "a reference can be sent to a worker", ""),
        ("Hasty", "verify_fast and cache_key agree with verify", "correct against wrong"),
        ("Forgetful", "verify_fast and cache_key agree with verify", "the same key"),
        ("Lenient", "wrong answers are not correct", "so 43"),
        ("Missing", "it loads by its name", "has no class 'Missing'"),
    ],
)
async def test_a_broken_promise_is_named(tmp_path: Path, name: str, promise: str, detail: str) -> None:
    check = (await checks(tmp_path, name))[promise]
    assert not check.passed and detail in check.detail


@pytest.mark.parametrize("name", ["math", "exact", "numeric", "choice", "countdown"])
async def test_the_built_ins_keep_the_contract(name: str) -> None:
    gold = {"choice": "B", "countdown": {"target": 42, "numbers": [6, 7]}}.get(name, "42")
    found = await check_contract(name, {}, [gold])
    assert [check for check in found if not check.passed] == []


GROUPS = """
import time
from verifiers.verdict import Outcome, Verdict, correct, wrong

class Honest:
    def parse_reference(self, raw):
        if not isinstance(raw, str) or not raw:
            raise ValueError("expected a string")
        return raw
    def verify_group(self, responses, reference):
        return [correct() if reference in text else wrong() for text in responses]

class Raises(Honest):
    def verify_group(self, responses, reference):
        return [correct() if text[0] == reference else wrong() for text in responses]

class Hangs(Honest):
    def verify_group(self, responses, reference):
        while "}" * 10_000 in responses: pass
        return super().verify_group(responses, reference)

class Drops(Honest):
    def verify_group(self, responses, reference):
        return super().verify_group(set(responses), reference)

class First(Honest):
    def verify_group(self, responses, reference):
        return [correct(), *(wrong() for _ in responses[1:])]

class Lenient(Honest):
    def verify_group(self, responses, reference):
        return [correct() for _ in responses]

class Both(Honest):
    def verify(self, response, reference):
        return correct() if response[0] == reference else wrong()
"""


async def group_checks(tmp_path: Path, name: str) -> dict[str, str]:
    """The promises that are broken, with why."""
    (tmp_path / "groups.py").write_text(GROUPS)
    right, wrong = [("42", "so 42"), ("42", "42!")], [("42", "so 43")]
    found = await check_contract(f"./groups.py:{name}", {}, ["42"], folder=tmp_path, right=right, wrong=wrong)
    return {check.promise: check.detail for check in found if not check.passed}


async def test_an_honest_group_wise_verifier_keeps_every_promise(tmp_path: Path) -> None:
    assert await group_checks(tmp_path, "Honest") == {}


@pytest.mark.parametrize(
    ("name", "promise", "said"),
    [
        ("Raises", "no group of responses makes it raise, hang or fault", "IndexError"),
        ("Hangs", "no group of responses makes it raise, hang or fault", "timeout"),
        ("Drops", "no group of responses makes it raise, hang or fault", "verdicts for"),
        ("First", "a group gets the same verdicts again, and in any order", "correct (1.0), in the reversed"),
        ("Lenient", "right answers score above wrong ones", "right [1.0, 1.0], wrong [1.0]"),
        ("Both", "no response makes it raise, hang or fault", "IndexError"),
    ],
)
async def test_a_broken_promise_to_groups_is_named(
    tmp_path: Path, name: str, promise: str, said: str
) -> None:
    assert said in (await group_checks(tmp_path, name))[promise]
