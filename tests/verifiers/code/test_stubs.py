"""Golds that any program would pass are refused when they are loaded, with the reason."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import pytest

from verifiers.code.verifier import CodeVerifier, stubs


def parse(gold):
    return CodeVerifier().parse_reference(gold)


@pytest.mark.parametrize(("test", "words"), [
    ("def check(candidate):\n    assert candidate(1) == 2", "defines 'check' and never calls it"),
    ("def check(candidate):\n    assert candidate(1) == 2\ncheck", "asks nothing of the program"),
    ("def check(f):\n    assert f(1) == 2\n    if f(2) != 3:\n        check(f)", "never calls it"),
    ("def outer():\n    def check():\n        assert f(1) == 2\nouter()", "defines 'check' and never calls it"),
    ("f(1) == 2", "does nothing with the result; write 'assert f\\(1\\) == 2'"),
    ("x = f(1)\nx == 2", "does nothing with the result"),
    ("def test_f():\n    f(1) == 2\n    assert f(2) == 3", "does nothing with the result"),
    ("not f(1)", "does nothing with the result"),
    ("isinstance(f(1), int)", "does nothing with the result"),
    ("all(f(n) == n for n in range(3))", "does nothing with the result"),
    ("f(1) is None and f(2)", "does nothing with the result"),
    ("f(1)", "nothing in it checks anything"),
    ("x = f(1)\nprint(x)", "nothing in it checks anything"),
    ("def test_f():\n    return f(1) == 2", "nothing in it checks anything"),
    ("import math\nassert math.gcd(4, 6) == 2", "asks nothing of the program"),
    ("x = [2, 1]\nassert sorted(x) == [1, 2]", "asks nothing of the program"),
    ("assert Fraction(1, 2) + Fraction(1, 2) == 1", "asks nothing of the program"),
    ("def f(x):\n    return x\nassert f(1) == 1", "asks nothing of the program"),
    ("assert True", "asks nothing of the program"),
    ("def test_f(value):\n    assert f(value) == 2", "test_f takes 'value' and is never called"),
    ("import pytest\n@pytest.fixture\ndef value():\n    return 1\ndef test_f():\n    assert f(1) == 2", "uses pytest.fixture"),
    ("import pytest\n@pytest.mark.skip\ndef test_f():\n    assert f(1) == 2", "uses pytest.mark.skip"),
    ("class TestF:\n    def test_f(self, tmp_path):\n        assert f(1) == 2", "takes 'tmp_path'"),
])  # fmt: skip
def test_statements_that_check_nothing_are_refused(test, words):
    with pytest.raises(ValueError, match=words):
        parse([{"assert": test}])


@pytest.mark.parametrize("call", [
    "math.gcd(4, 6)", "sorted(max([1, 2]), min([3]))", "Counter('aab')", "abs(-1) + 1", "2 + 2", "[1, 2][0]", "'a'.upper()",
])  # fmt: skip
def test_calls_that_ask_nothing_of_the_program_are_refused(call):
    with pytest.raises(ValueError, match="asks nothing of the program"):
        parse([{"call": call, "expect": "2"}])


@pytest.mark.parametrize(("gold", "words"), [
    ({"setup": "def f(x): return 0\nroot = None", "tests": ["assert f(root) == 3"]}, "asks nothing of the program"),
    ({"setup": "x = (", "tests": ["assert f(1) == 3"]}, "setup does not parse"),
    ({"setup": 5, "tests": ["assert f(1) == 3"]}, "expected Python source"),
    ({"setup": "x = 1", "tests": [{"stdout": "1"}]}, "setup is for call and assert tests"),
    ({"tests": [{"call": "f()", "stdout": 5}]}, "expected a string"),
    ({"tests": [{"call": "f()"}]}, "has the keys"),
])  # fmt: skip
def test_a_setup_and_an_output_must_be_what_they_say(gold, words):
    with pytest.raises(ValueError, match=words):
        parse(gold)


@pytest.mark.parametrize("test", [
    "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)",
    "def check(candidate):\n    assert candidate(1) == 2\ndef test_all():\n    check(f)",
    "def on(event):\n    assert event == 1\nregister(on)",
    "if f(1) != 2:\n    raise ValueError",
    "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise RuntimeError",
    "import numpy.testing\nnumpy.testing.assert_allclose(f(1), 2)",
    "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 2)",
    "def helper(x, y=2):\n    assert x == y\nfor n in (1, 2):\n    helper(f(n))",
])  # fmt: skip
def test_statements_that_can_fail_are_taken(test):
    assert parse([{"assert": test}]).names


def test_a_function_with_the_name_of_a_builtin_must_be_the_programs_own(grade):
    tests = [{"call": "max([1, 2])", "expect": "2"}]
    assert parse(tests).names == ("max",)
    assert grade("x = 1", tests).score == 0.0
    assert grade("def max(items): return sorted(items)[-1]", tests).score == 1.0


def test_what_a_gold_asks_for_is_read_from_all_its_tests():
    gold = {"setup": "root = Node(1)\nn = 2", "tests": [
        "assert f(1) == 2", "assert g(root, n) == n", {"call": "h(int('3'))", "expect": "1"},
        "from solution import k\nassert k(math.pi) == deque([1])", {"stdin": "1", "stdout": "1"},
    ]}  # fmt: skip
    assert parse(gold).names == ("Node", "f", "g", "h", "k")


def test_useless_programs_are_made_for_every_kind_of_task():
    made = dict(stubs(parse(["assert f(1) == 2", "assert len(Stack()) == 0"])))
    assert "empty program" in made and "def f(*arguments" in made["always None"]
    assert "class Stack(object)" in made["always None by a class"]
    assert set(dict(stubs(parse([{"stdout": "1"}])))) == {"empty program", "its own input"}
    cpp = dict(stubs(parse({"lang": "cpp", "tests": [{"stdout": "1"}]})))
    assert all("int main" in program for program in cpp.values())


@pytest.mark.parametrize("test", [
    {"call": "print(f(1) == 2)", "stdout": "True\n"},
    {"call": "f(1) * 2", "expect": "1e400"},
])  # fmt: skip
def test_calls_that_compare_in_the_program_s_box_are_refused_where_no_judge_can_run_them(test):
    with pytest.raises(ValueError, match="write an assert statement"):
        parse([test])


@pytest.mark.parametrize(("test", "why"), [
    ("class TestF:\n    def setup_class(self):\n        self.x = 1\n    def test_f(self):\n        assert f(self.x) == 2",
     "its 'setup_class' is never called"),
    ("def setup_module():\n    pass\ndef test_f():\n    assert f(1) == 2", "its 'setup_module' is never called"),
    ("def test_f(capsys):\n    f(1)\n    assert capsys.readouterr().err == 'x'", "only standard output is captured"),
])  # fmt: skip
def test_tests_that_rely_on_what_the_judge_does_not_do_are_refused(test, why):
    with pytest.raises(ValueError, match=why):
        parse([{"assert": test}])
