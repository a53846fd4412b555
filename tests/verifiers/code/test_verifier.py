"""What programs may look like and still be right, how scores are made, and whose fault a failure is."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from sandbox.pool import SandboxService
from sandbox.result import Result, SandboxError, Status
from sandbox.settings import SandboxSettings
from verifiers.code.verifier import CodeVerifier, stubs
from verifiers.verdict import Outcome

ADD = "def add(a, b=1):\n    return a + b\n"


def test_each_kind_of_test_passes_for_a_right_program(grade):
    both = ADD + "if __name__ == '__main__':\n    print(add(*map(int, input().split())))\n"
    tests = [{"stdin": "1 2\n", "stdout": "3\n"}, {"call": "add(1, 2)", "expect": "3"}, {"assert": "assert add(1) == 2"},
             {"assert": "assert abs(add(0.1, 0.2) - 0.3) < 1e-9"}]  # fmt: skip
    verdict = grade(f"<think>hm</think>\n```python\n{both}```", tests)
    assert (verdict.outcome, verdict.score, verdict.detail) == (Outcome.CORRECT, 1.0, "All 4 tests passed.")
    assert verdict.extracted == both


def test_the_share_of_tests_passed_is_the_score_when_asked_for(grade):
    tests = [{"call": f"add({n}, 1)", "expect": str(n + 1 if n < 3 else 0)} for n in range(4)]
    assert grade(ADD, tests).score == 0.0
    verdict = grade(ADD, tests, scoring="fraction")
    assert (verdict.outcome, verdict.score) == (Outcome.WRONG, 0.75)
    assert verdict.detail.startswith("3 of 4 tests passed; first failure: add(3, 1) gave 4, expected 0")


def test_the_first_failure_ends_the_grading_unless_a_share_is_wanted(grade):
    tests = [{"stdin": str(n), "stdout": "1"} for n in range(4)]
    assert ", 1 run" in grade("print(0)", tests).detail
    assert ", 1 run" not in grade("print(0)", tests, early_stop=False).detail


@pytest.mark.parametrize(("program", "test"), [
    ("class Stack:\n def __init__(self): self.x = []\n def push(self, v): self.x.append(v)\n def pop(self): return self.x.pop()\n"
     " def __len__(self): return len(self.x)\n def __contains__(self, v): return v in self.x",
     "s = Stack()\ns.push(3)\nassert len(s) == 1 and 3 in s\nassert s.pop() == 3 and not s.x"),
    ("class V:\n def __init__(self, x): self.x = x\n def __add__(self, o): return V(self.x + o.x)\n"
     " def __eq__(self, o): return self.x == o.x", "assert V(1) + V(2) == V(3)\nassert not V(1) == V(2)"),
    ("class Solution:\n def twice(self, x): return 2 * x", "assert Solution().twice(4) == 8"),
    ("class Solution:\n def twice(self, x): return 2 * x", "assert abs(twice(4)) == 8"),
    ("def rotate(x): x.insert(0, x.pop())", "a = [1, 2, 3]\nrotate(a)\nassert a == [3, 1, 2]"),
    ("def fill(d): d['a'] = 1", "d = {}\nfill(d)\nassert d == {'a': 1}"),
    ("def apply(f, xs): return [f(x) for x in xs]", "assert apply(lambda x: x * x, [1, 2]) == [1, 4]"),
    ("def root(x):\n if x < 0: raise ValueError('negative')\n return x ** .5",
     "try:\n    root(-1)\n    assert False\nexcept ValueError as error:\n    assert 'negative' in str(error)"),
    ("class Odd(Exception): pass\ndef f(): raise Odd('x')", "try:\n    f()\nexcept Exception as e:\n    assert 'x' in str(e)"),
    ("def evens(n):\n for i in range(0, n, 2): yield i", "assert list(evens(5)) == [0, 2, 4]"),
    ("from collections import Counter\ndef count(s): return Counter(s)", "assert count('aab') == {'a': 2, 'b': 1}"),
    ("from collections import Counter\ndef count(s): return Counter(s)", "assert Counter(count('aab')) == Counter('baa')"),
    ("import math\ndef area(r): return math.pi * r * r", "assert math.isclose(area(1), math.pi)"),
    ("def minmax(x): return min(x), max(x)", "low, high = minmax([3, 1, 2])\nassert (low, high) == (1, 3)"),
    ("def make(n):\n def inner(x): return x + n\n return inner", "assert make(2)(3) == 5"),
    ("def f(*a, **k): return a, k", "assert f(1, b=2) == ((1,), {'b': 2})"),
    ("LIMIT = 5\ndef f(): return LIMIT", "assert f() <= LIMIT == 5"),
    ("def words(s): return set(s.split())", "assert words('b a b') == {'a', 'b'}"),
    ("from fractions import Fraction\ndef half(): return Fraction(1, 2)", "assert half() == Fraction(1, 2) == 0.5"),
    ("def big(): return 7 ** 9000", "assert big() == 7 ** 9000"),
    ("def nothing(): pass", "assert nothing() is None"),
    ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
    ("def f(x): return float('inf') if x else b'x'", "assert f(1) == float('inf') and f(0) == b'x'"),
    ("import asyncio\nasync def g(): return 4\ndef f(): return asyncio.run(g())", "assert f() + 1 == 5"),
    ("import numpy as np\ndef f(): return np.arange(3)", "assert list(f()) == [0, 1, 2]"),
])  # fmt: skip
def test_honest_programs_pass_tests_of_every_shape(grade, program, test):
    if "numpy" in program:
        pytest.importorskip("numpy")
    verdict = grade(program, [{"assert": test}], limits={"wall_seconds": 10, "cpu_seconds": 5})
    assert verdict.outcome is Outcome.CORRECT, verdict.detail


@pytest.mark.parametrize(("program", "test"), [
    ("def f(x): return x", "assert f(1) == 2"),
    ("def f(x): return '1'", "assert f(1) == 1"),
    ("def f(x): return (1, 2)", "assert f(1) == [1, 2]"),
    ("def g(x): return 1", "assert f(1) == 1"),
    ("", "assert max([1, 2]) == 2"),
    ("def f(x): return None", "assert f(1)"),
    ("def f(x): return 1", "assert f(1) is True"),
    ("class f:\n def __init__(self, x): pass\n def __eq__(self, o): return True", "assert f(1) == f(2)"),
    ("def f(x):\n class A:\n  def __eq__(self, o): return True\n return A()", "assert f(1) == f(2)"),
])  # fmt: skip
def test_wrong_programs_fail_them(grade, program, test):
    assert grade(program, [{"assert": test}]).outcome is (Outcome.WRONG if program else Outcome.NO_ANSWER)


@pytest.mark.parametrize(("value", "expect", "passes"), [
    ("3", "3", True), ("3.0", "3", True), ("3", "3.0", True), ("3.0000000001", "3.0", True), ("3.1", "3.0", False),
    ("True", "1", False), ("1", "True", False), ("'3'", "3", False), ("(1, 2)", "[1, 2]", True), ("[1, 2]", "(1, 2)", True),
    ("[2, 1]", "[1, 2]", False), ("{1, 2}", "{2, 1}", True), ("[1, 2]", "{1, 2}", False), ("{'a': [1]}", '{"a": [1]}', True),
    ("None", "null", True), ("True", "true", True), ("float('nan')", "1.0", False), ("'a'", "'a'", True), ("b'a'", "'a'", False),
    ("10 ** 400", "1.0", False), ("[[1.0000000001]]", "[[1.0]]", True), ("{True}", "{1}", False),
])  # fmt: skip
def test_values_are_compared_by_type_and_tolerance(grade, value, expect, passes):
    verdict = grade(f"def f(): return {value}", [{"call": "f()", "expect": expect}])
    assert (verdict.outcome is Outcome.CORRECT) == passes, verdict.detail


def test_a_checker_decides_where_several_outputs_are_valid(grade):
    checker = "n = int(open('input.txt').read())\na, b = map(int, open('output.txt').read().split())\nassert a + b == n"
    tests = [{"stdin": "7", "stdout": "3 4"}]
    assert grade("n = int(input()); print(1, n - 1)", tests, checker=checker).outcome is Outcome.CORRECT
    assert grade("n = int(input()); print(1, n)", tests, checker=checker).outcome is Outcome.WRONG
    assert grade("print('x')", tests, checker=checker).outcome is Outcome.WRONG


def test_c_plus_plus_and_bash_are_graded_by_their_output(grade):
    limits = {"wall_seconds": 10, "cpu_seconds": 5}
    tests = [{"stdin": "1 2", "stdout": "3"}]
    cpp = "```cpp\n#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }\n```"
    assert grade(cpp, tests, lang="cpp", limits=limits).outcome is Outcome.CORRECT
    assert grade("```bash\nread a b; echo $((a + b))\n```", tests, lang="bash").outcome is Outcome.CORRECT
    verdict = grade("```cpp\nint main() { return x; }\n```", tests, lang="cpp", limits=limits)
    assert verdict.outcome is Outcome.WRONG and verdict.detail.startswith("Does not compile")


def test_a_large_input_and_output_pass(grade):
    data = "\n".join(map(str, range(300_000)))
    program = "import sys\nnumbers = sys.stdin.read().split()\nprint('\\n'.join(reversed(numbers)))"
    expected = "\n".join(map(str, reversed(range(300_000))))
    verdict = grade(
        program, [{"stdin": data, "stdout": expected}], limits={"wall_seconds": 10, "cpu_seconds": 5}
    )
    assert verdict.outcome is Outcome.CORRECT


def test_a_fresh_interpreter_gives_the_same_verdicts(grade):
    tests = [
        {"call": "add(1, 2)", "expect": "3"},
        {"assert": "assert abs(add(1)) == 2"},
        {"stdin": "", "stdout": ""},
    ]
    assert grade(ADD, tests, fresh=True, limits={"wall_seconds": 10}).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    "response", ["", "   \n", "<think>def f(): pass", "```python\n\n```", "</think><think>x"]
)
def test_a_response_without_a_program_is_no_answer(grade, response):
    assert grade(response, [{"call": "f()", "expect": "1"}]).outcome is Outcome.NO_ANSWER


def test_a_sandbox_that_has_asyncio_already_awaits_the_program_s_coroutines():
    test = {"assert": "import asyncio\nassert asyncio.run(double(3)) == 6"}
    reference = CodeVerifier().parse_reference({"tests": [test]})

    def work(sandbox):
        return CodeVerifier(sandbox=sandbox).verify_async("async def double(x): return 2 * x", reference)

    with contextlib.closing(SandboxService(SandboxSettings(workers=1, preload=("asyncio",)))) as service:
        verdict = service.call(work)
    assert verdict.outcome is Outcome.CORRECT, verdict.detail


class BrokenSandbox:
    """A sandbox whose machinery fails."""

    async def build(self, source, *, lang, limits, fresh=False):
        raise SandboxError("the worker is gone")

    async def run(self, command):
        raise SandboxError("the worker is gone")

    run_linked = None


class RefusingSandbox(BrokenSandbox):
    """A sandbox on a machine without isolation."""

    async def run(self, command):
        return Result(Status.REFUSED, detail="no isolation on this machine")


@pytest.mark.parametrize("sandbox", [BrokenSandbox(), RefusingSandbox()])
def test_a_failure_of_the_sandbox_is_a_fault_without_a_score(sandbox):
    verifier = CodeVerifier(sandbox=sandbox)
    reference = verifier.parse_reference([{"call": "f()", "expect": "1"}])
    verdict = asyncio.run(verifier.verify_async("def f(): return 1", reference))
    assert (verdict.outcome, verdict.score) == (Outcome.FAULT, None)


@pytest.mark.parametrize(("raw", "words"), [
    ({"tests": []}, "at least one test"),
    ({}, "at least one test"),
    ("nonsense", "is not JSON"),
    (5, "expected an object with tests"),
    ({"tests": [{"stdin": "1"}]}, "test 1 has the keys"),
    ({"tests": [{"call": "f(", "expect": "1"}]}, "does not parse"),
    ({"tests": [{"call": "f()", "expect": "hello"}]}, "quote a string"),
    ({"tests": [{"assert": "assert ("}]}, "does not parse"),
    ({"tests": [{"assert": ""}]}, "is empty"),
    ({"tests": [{"stdout": "1"}], "lang": "cobol"}, "cobol"),
    ({"tests": [{"call": "f()", "expect": "1"}], "lang": "cpp"}, "for Python"),
    ({"tests": [{"stdout": "1"}], "limits": {"wall": 1}}, "unknown key 'wall'"),
    ({"tests": [{"stdout": "1"}], "color": 1}, "unknown key 'color'"),
    ({"tests": [{"stdout": "1"}], "whitespace": "none"}, "whitespace"),
    ({"tests": [{"stdin": 1, "stdout": "1"}]}, "expected a string"),
])  # fmt: skip
def test_a_bad_gold_is_refused_when_it_is_loaded(raw, words):
    with pytest.raises(ValueError, match=words):
        CodeVerifier().parse_reference(raw)


def test_a_reference_can_be_pickled_and_equal_programs_share_a_key():
    import pickle

    verifier = CodeVerifier()
    reference = verifier.parse_reference({"tests": [{"call": "f()", "expect": "[1, {2: 3}]"}]})
    assert dataclasses.asdict(pickle.loads(pickle.dumps(reference))) == dataclasses.asdict(reference)
    assert verifier.cache_key("```\nx\n```", reference) == verifier.cache_key(
        "text\n```python\nx\n```", reference
    )


def test_verify_blocks_and_works_without_an_event_loop():
    verifier = CodeVerifier(workers=1)
    try:
        reference = verifier.parse_reference({"tests": [{"call": "add(1)", "expect": "2"}]})
        assert verifier.verify(ADD, reference).outcome is Outcome.CORRECT
        assert asyncio.run(verifier.verify_async(ADD, reference)).outcome is Outcome.CORRECT
    finally:
        verifier.close()


def read_pairs(path: Path):
    """(program, gold) of each section, named."""
    pairs = []
    for section in path.read_text().split("\n=== ")[1:]:
        name, _, rest = section.partition("\n")
        program, _, test = rest.partition("\n---\n")
        gold = json.loads(test) if test.startswith('{"') else {"tests": [{"assert": test}]}
        pairs.append(pytest.param(program, gold, id=name))
    return pairs


PAIRS = read_pairs(Path(__file__).parent / "honest.txt")


@pytest.mark.parametrize(("program", "gold"), PAIRS)
def test_a_right_program_passes(submit, program, gold):
    verdict = submit(f"```python\n{program}\n```", gold).result()
    assert verdict.outcome is Outcome.CORRECT, verdict.detail


# Each gold is tried with up to 13 programs: a third of them are typical of all.
STUBBED = [
    pytest.param(*pair.values, id=pair.id, marks=[pytest.mark.exhaustive] * bool(number % 3))
    for number, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize(("program", "gold"), STUBBED)
def test_no_program_that_solves_nothing_passes_the_same_gold(submit, program, gold):
    futures = {kind: submit(response, gold) for kind, response in stubs(CodeVerifier().parse_reference(gold))}
    passed = [kind for kind, future in futures.items() if future.result().outcome is not Outcome.WRONG]
    assert passed == []
