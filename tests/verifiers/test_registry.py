"""The ways to name a verifier, a plain function and a file of the user's among them, and the sentences for
what is wrong."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.records import VerifierSpec
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.own import is_built_in
from verifiers.pool import VerifierPool
from verifiers.registry import check_options, from_function, load_verifier
from verifiers.task import Task, takes_task
from verifiers.verdict import Outcome, Verdict

MINE = """
from verifiers.verdict import Outcome, Verdict

class Parity:
    def __init__(self, *, wanted="even"):
        self.wanted = wanted
    def parse_reference(self, raw):
        return int(raw)
    def verify(self, response, reference):
        good = (len(response) % 2 == 0) == (self.wanted == "even")
        return Verdict(Outcome.CORRECT if good else Outcome.WRONG, float(good))

class NotOne:
    pass
"""


def test_a_module_path_and_a_file_path_name_a_verifier_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    assert load_verifier("./mine.py:Parity", folder=tmp_path).verify("ab", 1).score == 1.0
    assert load_verifier("./mine.py:Parity", {"wanted": "odd"}, folder=tmp_path).verify("ab", 1).score == 0.0
    assert load_verifier("verifiers.math.verifier:MathVerifier").parse_reference("1") is not None


def test_two_files_of_the_same_name_do_not_replace_each_other(tmp_path: Path) -> None:
    for folder, wanted in (("one", "even"), ("two", "odd")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(MINE.replace('wanted="even"', f'wanted="{wanted}"'))
    first = load_verifier("./mine.py:Parity", folder=tmp_path / "one")
    second = load_verifier("./mine.py:Parity", folder=tmp_path / "two")
    assert (first.verify("ab", 1).score, second.verify("ab", 1).score) == (1.0, 0.0)


def test_wrong_names_are_answered_with_the_nearest_right_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("1 / 0")
    for name, sentence in (
        ("maths", "Did you mean 'math'"),
        ("./mine.py:Parety", "Did you mean 'Parity'"),
        ("./other.py:Parity", "there is no file"),
        ("./mine.py:NotOne", "has no method 'parse_reference'"),
        ("./broken.py:Parity", "ZeroDivisionError"),
        ("no_such_module_here:Name", "cannot be imported"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_verifier(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("remote", {}, "needs the option 'url', expected a string"),
        ("math", {"fallback": ["hashes"]}, "no option 'fallback'. Did you mean 'fallbacks'"),
        ("math", {"fallbacks": ["hash"]}, "one of final_answer, hashes, last_line.*Did you mean 'hashes'"),
        ("exact", {"ignore_case": "yes"}, "true or false"),
        ("length", {"max_length": 0}, "'max_length' of verifier 'length' is 0, expected a whole number of a"),
        ("length", {"max_length": True}, "is True, expected a whole number"),
        ("length", {"max_length": 5, "buffer": 6}, "'buffer'.*at most max_length"),
        ("numeric", {"relative_tolerance": 2}, r"is 2, expected a number in \[0, 1\]"),
        ("numeric", {"relative_tolerance": float("nan")}, "is nan, expected a number"),
        ("code", {"float_tolerance": 1}, r"expected a number in \[0, 1\)"),
        ("code", {"workers": 0.5}, "is 0.5, expected a whole number or null"),
        ("code", {"limits": 5}, "'limits' of verifier 'code' is 5, expected an object or null"),
        ("regex", {"match": "ful"}, "is 'ful', expected one of full, search. Did you mean 'full'"),
        ("format", {"tags": 3}, "is 3, expected a list of strings"),
        ("verifiers.exact:ExactVerifier", {"think": "maybe"}, "expected one of optional, required, ignore"),
        ("weighted", {"parts": [{"name": "exact", "options": {"ignorecase": 1}}]}, "mean 'ignore_case'"),
    ],
)
def test_the_sentence_names_the_option_the_value_and_what_was_expected(
    name: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_verifier(name, options)


def test_a_list_may_be_words_with_commas_and_a_whole_number_may_be_written_with_a_point() -> None:
    found = check_options("numeric", {"fallbacks": "hashes,last_line"})
    assert found == {"fallbacks": ("hashes", "last_line")}
    assert check_options("length", {"max_length": 5.0, "factor": 2}) == {"max_length": 5, "factor": 2.0}


def printed(program: str) -> str:
    """By a process of its own."""
    root, command = Path(__file__).parents[2], [sys.executable, "-c", program]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def test_a_worker_that_grades_with_options_imports_no_pydantic() -> None:
    program = (
        "import pickle, sys; from verifiers.worker import _Worker;"
        "specification = pickle.dumps(('exact', {'ignore_case': False}, None));"
        "gold = pickle.dumps(frozenset('a'));"
        "reply = _Worker({}, 1 << 40).answer('verify', specification, b'a', gold, b'');"
        "print(b'correct' in reply, 'pydantic' in sys.modules)"
    )
    assert printed(program) == "True False"


def test_importing_verifiers_and_the_pool_imports_nothing_heavy() -> None:
    heavy = {"torch", "sympy", "numpy", "mpmath", "jsonschema", "pydantic", "aiohttp"}
    program = (
        "import sys, verifiers.pool, verifiers.registry, verifiers.monitor;"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    assert printed(program) == "[]"


def test_a_verifier_of_ones_own_that_raises_while_it_is_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Broken:\n    def __init__(self):\n        raise RuntimeError('no such table')\n"
    )
    with pytest.raises(ValueError, match="mine.py:Broken' could not be built.*RuntimeError: no such table"):
        load_verifier("./mine.py:Broken", folder=tmp_path)
    (tmp_path / "own.py").write_text(MINE)
    with pytest.raises(ValueError, match="could not be built.*'wonted'"):
        load_verifier("./own.py:Parity", {"wonted": "odd"}, folder=tmp_path)


def is_same(response: str, reference: Any) -> bool:
    return response == reference


def returns(value: Any) -> Any:
    def function(response: str, reference: Any) -> Any:
        return value

    return from_function(function)().verify("", "")


def test_a_truth_value_is_right_or_wrong() -> None:
    verifier = from_function(is_same)()
    assert verifier.verify("4", verifier.parse_reference("4")) == Verdict(Outcome.CORRECT, 1.0)
    assert verifier.verify("5", "4") == Verdict(Outcome.WRONG, 0.0)


def test_a_score_is_correct_from_a_bound_on() -> None:
    assert returns(0.6) == Verdict(Outcome.WRONG, 0.6)
    assert returns(1) == Verdict(Outcome.CORRECT, 1.0)
    lenient = from_function(lambda response, reference: 0.6, correct_at=0.5)()
    assert lenient.verify("", "") == Verdict(Outcome.CORRECT, 0.6)


def test_none_is_no_answer_and_a_verdict_stays() -> None:
    assert returns(None) == Verdict(Outcome.NO_ANSWER, 0.0)
    own = Verdict(Outcome.WRONG, 0.0, detail="why")
    assert returns(own) is own


@pytest.mark.parametrize("value", ["yes", 1.5, float("nan"), [1]])
def test_anything_else_is_the_functions_mistake(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        returns(value)


def test_a_function_that_names_the_task_is_told_it() -> None:
    def asks(response: str, reference: Any, task: Task) -> bool:
        return task.prompt == "1+1="

    verifier = from_function(asks)()
    assert takes_task(verifier) and not takes_task(from_function(is_same)())
    assert verifier.verify("", "", Task(prompt="1+1=")).score == 1.0  # type: ignore[call-arg]


def test_a_function_whose_reference_has_a_default_needs_no_gold() -> None:
    def is_short(response: str, reference: Any = None) -> bool:
        return len(response) < 5

    assert from_function(is_short).takes_any_gold  # type: ignore[attr-defined]
    assert not from_function(is_same).takes_any_gold  # type: ignore[attr-defined]


def test_its_code_is_not_taken_for_ours() -> None:
    # Ours runs in the controller's event loop, where a function that hangs would stop the run.
    assert not is_built_in(from_function(is_same)())


async def waits(response: str, reference: Any) -> bool:
    return True


def test_other_signatures_are_refused_with_the_expected_one() -> None:
    with pytest.raises(TypeError, match=r"expected \(response, reference\)"):
        from_function(lambda response: True)
    with pytest.raises(TypeError, match=r"takes \(response, reference, other\)"):
        from_function(lambda response, reference, other: True)
    with pytest.raises(TypeError, match="async"):
        from_function(waits)
    with pytest.raises(ValueError, match="correct_at is 0"):
        from_function(is_same, correct_at=0)


OWN = """
from verifiers.verdict import Outcome, Verdict

def same(response, reference):
    return float(response == reference)

class Good:
    def __init__(self, scale=1): pass
    def parse_reference(self, raw): return raw
    def verify(self, response, reference): return same(response, reference)

class Waits(Good):
    async def verify(self, response, reference): return Verdict(Outcome.CORRECT, 1.0)

class Refuses(Good):
    def verify(self, response, reference): raise TypeError(f"not {type(self)}")
"""


async def test_a_plain_function_judges_as_it_does_in_a_call_from_python(folder: Path) -> None:
    verifier = load_verifier("./own.py:same", folder=folder)
    assert verifier.parse_reference("007") == "007"
    async with VerifierPool(1) as pool:
        judged = [await pool.verify("./own.py:same", {}, said, "007", folder=folder) for said in ("007", "7")]
    assert [each.outcome for each in judged] == [Outcome.CORRECT, Outcome.WRONG]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("Godo", {}, "has no class 'Godo'. Did you mean 'Good'? It has: same, Good, Waits, Refuses."),
        ("Waits", {}, "expected a plain method. A verifier that waits has verify_async beside it"),
        ("Good", {"sclae": 2}, "could not be built with the options {'sclae': 2}: "),
    ],
)
def test_a_mistake_is_said_once_in_the_users_own_names(
    folder: Path, name: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        VerifierCache(folder).get(VerifierSpec(f"./own.py:{name}", options))
    said = str(refused.value)
    assert sentence in said and "asyncrl_plugin" not in said
    assert said.count(f"own.py:{name}") == 1 and said.count("options") == len(options)


async def test_what_a_verifier_raises_names_no_module_of_ours(folder: Path) -> None:
    async with VerifierPool(1) as pool:
        verdict = await pool.verify("./own.py:Refuses", {}, "1", "1", folder=folder)
    assert "not <class 'own.Refuses'>" in verdict.detail
