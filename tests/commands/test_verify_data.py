"""Data sets against their verifiers: bad rows are listed with their place, rates are counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.gym import NEEDS_GYM, gym_gold

from asyncrl.commands import main as cli
from verifiers.dataset import DataReport, GoldRow, check_rows, mutants
from verifiers.pool import VerifierPool

ROOT = Path(__file__).parents[2]


async def check(
    golds: list[Any], name: str = "math", options: dict[str, object] | None = None, folder: Path | None = None
) -> DataReport:
    async with VerifierPool() as pool:
        rows = [
            GoldRow(f"data.jsonl:{line}", gold, name, options or {})
            for line, gold in enumerate(golds, start=1)
        ]
        return await check_rows(rows, pool, folder=folder)


def test_mutants_are_other_answers_made_from_the_gold() -> None:
    made = dict(mutants("123", other="7"))
    assert made == {
        "changed digit": "124",
        "changed sign": "-123",
        "swapped digits": "213",
        "another row's gold": "7",
    }
    assert dict(mutants("(1,2)"))["swapped places"] == "(2,1)"
    assert dict(mutants("x^2 + 5y")) == {"changed digit": "x^2 + 6y"}
    assert dict(mutants("Monday", other="monday")) == {}
    assert "changed sign" not in dict(mutants("0"))
    assert "another row's gold" not in dict(mutants("0.5", other="1/2"))


async def test_a_clean_data_set_is_clean() -> None:
    report = await check(
        ["42", "\\frac{1}{2}", "(1, 2)", "x^2 + 1", "Monday", 7, "#### 18", "So \\boxed{3}."]
    )
    assert report.is_clean, report
    assert (report.num_rows, report.num_checked) == (8, 8)
    assert sum(report.num_mutants.values()) > 15


async def test_rows_that_cannot_be_verified_are_listed_with_their_place() -> None:
    report = await check(["42", "\\frac{1}{", "", "x +"])
    assert [complaint.split(":")[1] for complaint in report.unreadable] == ["2", "3", "4"]
    assert not report.is_clean


async def test_golds_whose_letters_may_be_a_word_or_a_product_are_listed_and_are_no_complaint() -> None:
    golds = ["no", "at", "xy", "2at", ["3", "AC"]]
    report = await check(golds)
    assert report.is_clean, report
    assert [guess.partition(" counts")[0] for guess in report.guesses] == [
        "data.jsonl:2: 'at'",
        "data.jsonl:5: ['3', 'AC']",
    ]
    assert (await check(golds, options={"letters": "product"})).guesses == []
    parts = {"parts": [{"name": "math"}]}
    assert len((await check(golds, "weighted", parts)).guesses) == 2


LENIENT = """
from verifiers.verdict import Outcome, Verdict
class Lenient:
    def parse_reference(self, raw): return str(raw)
    def verify(self, response, reference):
        good = reference[:1] in response
        return Verdict(Outcome.CORRECT if good else Outcome.WRONG, float(good))
class Refusing(Lenient):
    def verify(self, response, reference): return Verdict(Outcome.WRONG, 0.0)
"""


async def test_a_verifier_that_accepts_too_much_or_too_little_shows(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(LENIENT)
    lenient = await check(["123", "456"], "./own.py:Lenient", folder=tmp_path)
    # The first digit survives the changed digit, the sign and (for neither) the swap of the first two.
    assert lenient.num_accepted["changed digit"] == 2 and lenient.num_accepted["changed sign"] == 2
    assert 0 < lenient.false_positive_rate <= 1
    assert any(text.startswith("data.jsonl:1: '124' (changed digit)") for text in lenient.accepted_mutants)
    refusing = await check(["123"], "./own.py:Refusing", folder=tmp_path)
    assert refusing.false_negative_rate == 1.0 and "graded wrong as its own answer" in refusing.refused[0]


GROUP = """
class Last:
    def parse_reference(self, raw): return raw
    def verify_group(self, responses, reference): raise KeyError("never asked")
"""


async def test_golds_of_a_verifier_of_groups_are_only_parsed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(GROUP)
    report = await check(["123"], "./own.py:Last", folder=tmp_path)
    assert (report.num_rows, report.num_checked, report.is_clean) == (1, 0, True)


@pytest.mark.parametrize(("name", "gold"), [("regex", "a+"), ("json_schema", {"type": "object"})])
async def test_golds_that_are_no_answers_are_only_parsed(name: str, gold: object) -> None:
    report = await check([gold], name)
    assert (report.num_rows, report.num_checked, report.is_clean) == (1, 0, True)


async def test_a_code_gold_must_pass_its_own_solution_and_fail_programs_that_solve_nothing() -> None:
    right, wrong = "def {0}(x):\n    return x + 1", "def {0}(x):\n    return x"
    weak = {"tests": ["assert is_odd(3)", "assert is_odd(5)"]}
    report = await check(
        [
            {"tests": ["assert a(1) == 2", "assert a(4) + 0 == 5"], "solution": right.format("a")},
            {"tests": ["assert b(1) == 2"], "solution": wrong.format("b")},
            {"tests": ["def check(c):\n    assert c(1) == 2"], "solution": "def f(x): return 2"},
            weak,
            {"tests": [{"call": "c(1)", "expect": "1"}]},
        ],
        "code",
    )
    assert (report.num_rows, report.num_checked, report.faults) == (5, 2, [])
    assert ["never calls it" in complaint for complaint in report.unreadable] == [True]
    assert [complaint.split(":")[1] for complaint in report.refused] == ["2"]
    assert "its own solution is graded wrong: 0 of 1" in report.refused[0] and "b(1)" in report.refused[0]
    assert report.accepted_mutants == [
        "data.jsonl:4: a program that does nothing (always True) passes its tests",
        "data.jsonl:4: a program that does nothing (its first argument) passes its tests",
        "data.jsonl:5: a program that does nothing (its first argument) passes its tests",
    ]
    assert 0 < report.false_positive_rate < 0.2 and not report.is_clean


async def test_a_standard_output_that_a_useless_program_prints_shows() -> None:
    report = await check([{"tests": [{"stdin": "7", "stdout": "7"}]}], "code")
    kind = "its own input"
    assert report.accepted_mutants == [f"data.jsonl:1: a program that does nothing ({kind}) passes its tests"]


SILENT = {"stdin": "1", "stdout": ""}
BLANK = {"stdin": "2", "stdout": " \r\n\n"}
QUIET_CALL = {"call": "f(1)", "stdout": "\n"}


@pytest.mark.parametrize("gold", [
    {"tests": [SILENT]}, [SILENT], json.dumps([SILENT]), [SILENT, BLANK], [{"stdout": ""}], [QUIET_CALL],
    {"tests": [QUIET_CALL, SILENT], "whitespace": "tokens"}, {"tests": [SILENT], "lang": "c"},
    {"tests": [{"stdin": "", "stdout": "\r\n"}], "whitespace": "exact"},
])  # fmt: skip
async def test_tests_that_a_silent_program_passes_are_broken_golds(gold: Any) -> None:
    report = await check([gold], "code")
    assert report.unreadable == [
        "data.jsonl:1: every test expects that nothing is printed, so a program that does nothing passes; "
        "give a test whose stdout is not empty, a call with expect, or a checker"
    ]


@pytest.mark.parametrize("gold", [
    [SILENT, {"stdin": "2", "stdout": "2\n3"}], [{**QUIET_CALL, "expect": 3}],
    {"tests": [SILENT], "checker": "assert open('output.txt').read() == 'x'"},
    {"tests": [{"stdin": "", "stdout": "  "}], "whitespace": "exact"},
])  # fmt: skip
async def test_a_test_without_output_may_stand_beside_what_a_silent_program_fails(gold: Any) -> None:
    report = await check([gold], "code")
    assert report.is_clean and report.num_mutants["empty program"] == 1


@pytest.mark.parametrize(("expect", "found"), [
    (float("nan"), "nan"), ("NaN", None), ("[1, NaN]", None), ([1, {"a": float("inf")}], "inf"),
    ("1e400", "inf"), ("1e400j", "infj"), ("Infinity", None), ("-1e999", "-inf"),
])  # fmt: skip
async def test_a_value_that_no_program_can_return_is_a_broken_gold(expect: Any, found: str | None) -> None:
    report = await check([[{"call": "f(1)", "expect": expect}]], "code")
    if isinstance(expect, str):
        said = f"expects {found}" if found else "is not a Python or JSON literal"
    else:
        said = f"The gold holds {found}, which is not a value"
    assert len(report.unreadable) == 1 and said in report.unreadable[0]


async def test_each_answer_of_a_list_is_graded_with_its_own_mutants() -> None:
    report = await check([["12", "13"], ["1/2", "0.5"], ["5", "x +"]])
    assert [complaint[:13] for complaint in report.unreadable] == ["data.jsonl:3:"]
    # 13 is 12 with a changed digit, but an answer of its own.
    assert not report.accepted_mutants and not report.refused
    assert report.num_checked == 2 and report.num_mutants["changed digit"] == 3
    named = await check([["B", "C"]], "choice")
    assert named.is_clean and named.num_checked == 1


async def test_an_answer_of_a_list_that_is_refused_shows() -> None:
    report = await check([["fine", "so \\boxed{18}"]], "exact", {"source": "boxed"})
    assert len(report.refused) == 1 and "so \\\\boxed{18}" in report.refused[0], report.refused


def test_the_command_reads_a_recipe_and_reports_its_data(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "1+1?", "answer": "2"}, {"prompt": "1+2?", "answer": "3"}]
    (tmp_path / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bad.jsonl").write_text(json.dumps({"prompt": "?", "answer": "\\frac{1}{"}) + "\n")
    recipe = ROOT / "recipes" / "r1_zero_arithmetic_cpu.yaml"

    def verify_data(train: str) -> tuple[int, str, str]:
        data = [f"data.train={tmp_path}/{train}.jsonl", f"data.heldout={tmp_path}/good.jsonl"]
        code = cli.main(["verify-data", str(recipe), *data])
        said = capfd.readouterr()
        return code, said.out, said.err

    code, out, err = verify_data("good")
    assert code == 0, out + err
    assert "2 rows, 2 golds" in out and "false positives" in out
    assert "guessed readings 0 golds" in out
    (tmp_path / "guess.jsonl").write_text(json.dumps({"prompt": "?", "answer": "at"}) + "\n")
    code, out, _ = verify_data("guess")
    assert code == 0 and "guessed readings 1 golds" in out and "guess.jsonl:1: 'at'" in out
    code, out, _ = verify_data("bad")
    assert code == 1 and f"{tmp_path}/bad.jsonl:1" in out
    code, _, err = verify_data("none")
    assert code == 2 and "none.jsonl" in err and "Traceback" not in err


@NEEDS_GYM
async def test_tasks_of_a_gym_are_graded_with_their_own_answer_and_with_none() -> None:
    golds = [gym_gold("gcd"), gym_gold("coin_flip"), gym_gold("boxnet")]
    report = await check(golds, "gym")
    assert report.is_clean, report
    assert (report.num_rows, report.num_checked, report.num_mutants) == (3, 2, {"nothing": 3, "nonsense": 3})
    golds[0]["gym"] = "gdc"
    golds[1]["entry"]["answer"] = "none"
    report = await check(golds, "gym")
    assert report.refused == ["data.jsonl:2: its own answer is wrong: coin_flip scores it 0"]
    assert "has no dataset 'gdc'. Did you mean 'gcd'?" in report.faults[0]
