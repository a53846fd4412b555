"""No program passes without solving the task, and none turns its wrong answer into a fault."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import itertools
import shutil
import sys
from pathlib import Path

import pytest

from tests.verifiers.code.conftest import LIMITS, read_cheats
from tests.verifiers.code.plain_grader import accepts
from tests.verifiers.code.test_verifier import read_pairs
from verifiers.verdict import Outcome

TESTS = {
    "stdin": [{"stdin": "3\n", "stdout": "16\n"}, {"stdin": "10\n", "stdout": "107\n"}],
    "call": [{"call": "answer(3)", "expect": "16"}, {"call": "answer(10)", "expect": "107"}],
    "assert": [{"assert": "assert answer(3) == 16"}, {"assert": "assert answer(10) == 107"}],
    "judged": [
        {"assert": "assert abs(answer(3) - 16) + abs(answer(10) - 107) < 1e-9"},
        {"assert": "assert sorted([answer(10), answer(3)]) == [16, 107]"},
        {"assert": "def check(candidate):\n    assert candidate(3) == 16\n    assert candidate(10) == 107\ncheck(answer)"},
        {"assert": "assert 16 == answer(3) and 107 == answer(10)"},
        {"assert": "assert all(a == b for a, b in zip([answer(3), answer(10)], [16, 107]))"},
        {"assert": "import unittest\nclass TestAnswer(unittest.TestCase):\n    def test_it(self):\n"
                   "        self.assertEqual(answer(3), 16)\n        self.assertEqual(answer(10), 107)\nunittest.main()"},
    ],
    "judged otherwise": [
        {"assert": "from math import isclose\nassert isclose(answer(3), 16) and isclose(answer(10), 107)"},
        {"assert": "assert answer(3) in (16,) and answer(10) in (107,)"},
        {"assert": "assert not answer(10) != 107 and not answer(3) != 16"},
        {"assert": "assert isinstance(answer(10), int) and f'{answer(3)} {answer(10)}' == '16 107'"},
        {"assert": "assert all(map(lambda n: answer(n) == n * n + 7, [3, 10]))"},
        {"assert": "for got, right in zip(map(answer, [3, 10]), [16, 107]):\n    assert got == right"},
        {"assert": "from solution import answer\nfor n, right in ((3, 16), (10, 107)):\n    assert answer(n) == right"},
        {"assert": "def test_answer():\n    assert answer(3) == 16\n    assert answer(10) == 107"},
        {"assert": "import pytest\n@pytest.mark.parametrize('n, right', [(3, 16), (10, 107)])\n"
                   "def test_answer(n, right):\n    assert answer(n) == pytest.approx(right)"},
        {"assert": "try:\n    found = [answer(3), answer(10)]\nexcept ValueError:\n    found = []\nassert found == [16, 107]"},
        {"assert": "given = [3, 10]\nassert [answer(n) for n in given] == [16, 107] and given == [3, 10]"},
    ],
}  # fmt: skip
SOON = LIMITS | {"cpu_seconds": 1, "wall_seconds": 1.0}
ENDLESS = {
    *("loops without end", "loops when called", "stops itself", "prints many candidates"),
    *("an endless iterator", "uses up memory", "answers the judge with true for ever"),
}
"""They end by a limit, of whatever length."""
KINDS = [
    *("stdin", "assert", "judged"),
    # Direct asserts are calls too, compared by the weaker relation.
    *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("call", "judged otherwise")),
]
HONEST = "def answer(n):\n    return n * n + 7\nif __name__ == '__main__':\n    print(answer(int(input())))\n"


@pytest.fixture(scope="module")
def verdicts(request, grade):
    """(cheat, kind of tests) -> verdict of the selected tests, all graded side by side."""
    cheats, futures = read_cheats(), {}
    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    for name, kind in ((params["cheat"], params["kind"]) for params in chosen if "cheat" in params):
        options = {"scoring": "fraction", "early_stop": False} if "judged" in kind else {}
        limits = SOON | {"wall_seconds": 0.3} if name in ENDLESS else SOON
        futures[name, kind] = grade.submit(cheats[name], TESTS[kind], limits=limits, **options)
    return {key: future.result() for key, future in futures.items()}


@pytest.mark.parametrize("kind", TESTS)
def test_the_honest_program_passes(grade, kind):
    assert grade(HONEST, TESTS[kind]).outcome is Outcome.CORRECT


@pytest.mark.parametrize("kind", KINDS)
def test_a_cheat_never_passes_and_never_faults(verdicts, cheat, kind):
    verdict = verdicts[cheat, kind]
    assert verdict.outcome is Outcome.WRONG, verdict
    assert verdict.score == 0.0, verdict


def test_the_cheats_do_fool_a_grader_that_runs_tests_in_the_program_s_process():
    """They are no straw men: a subprocess with rlimits accepts ten of them."""
    python = "/usr/bin/python3" if shutil.which("/usr/bin/python3") else sys.executable
    tests = [TESTS["assert"], TESTS["judged"][:3], TESTS["stdin"]]
    assert accepts(python, HONEST.replace("int(input())", "int(input() or 3)"), TESTS["stdin"])
    slow = {
        "loops without end",
        "loops when called",
        "stops itself",
        "prints many candidates",
        "an endless iterator",
    }
    fooled = (
        name
        for name, source in read_cheats().items()
        if name not in slow and any(accepts(python, source, kind) for kind in tests)
    )
    assert len(list(itertools.islice(fooled, 10))) == 10


PAIRS = read_pairs(Path(__file__).parent / "cheats_by_test.txt")


@pytest.mark.parametrize(("program", "gold"), PAIRS)
def test_a_wrong_program_fails_the_test_it_was_made_for(submit, program, gold):
    verdict = submit(f"```python\n{program}\n```", gold).result()
    assert verdict.outcome is Outcome.WRONG, verdict
