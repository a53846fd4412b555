"""The examples of verifiers/README.md work as they stand there."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import yaml

from sandbox.limits import Limits, parse_limits
from verifiers.contract import check_contract
from verifiers.group_judge import GroupJudge
from verifiers.judge import JudgeVerifier
from verifiers.registry import load_verifier
from verifiers.task import Task

README = Path(__file__).parents[2] / "verifiers" / "README.md"
TEXT = README.read_text(encoding="utf-8")
WEIGHTED, JUDGE, GROUP_JUDGE = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
FIRST, CREDITED, OWN, _ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_first_example_gives_the_verdict_it_shows() -> None:
    names: dict[str, object] = {}
    *setup, last = FIRST.strip().splitlines()
    exec("\n".join(setup), names)
    verdict = eval(last, names)
    assert (verdict.outcome.value, verdict.score) == ("correct", 1.0)


def test_the_example_of_rewards_inside_a_response_is_a_verdict() -> None:
    names: dict[str, object] = {}
    *setup, last = CREDITED.strip().splitlines()
    exec("\n".join(setup), names)
    assert eval(last, names).has_credits()


async def test_the_verifier_of_ones_own_grades_and_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    verifier = load_verifier("./my.py:Palindrome", folder=tmp_path)
    assert verifier.verify("<think>hm</think>level", 5).score == 1.0
    assert verifier.verify("hello", 5).score == 0.0
    checks = await check_contract(
        "./my.py:Palindrome", {}, [5], folder=tmp_path, right=[(5, "level")], wrong=[(5, "hello")]
    )
    assert [check for check in checks if not check.passed] == []


def test_the_weighted_verifier_adds_up_what_the_example_says() -> None:
    section = yaml.safe_load(WEIGHTED)["verifying"]
    verifier = load_verifier(section["default"], section["options"])
    verdict = verifier.verify("<think>hm</think> \\boxed{42}", verifier.parse_reference("42"))
    assert (verdict.score, verdict.shaping) == (1.0, 0.1)


def test_the_judge_of_the_example_is_one() -> None:
    section = yaml.safe_load(JUDGE)["verifying"]
    judge = load_verifier(section["default"], section["options"])
    assert isinstance(judge, JudgeVerifier)
    asked = str(judge.cache_key("42", None, Task("6 times 7?")))
    assert "<response>\n42\n</response>" in asked and '"Verdict: C" (wrong)' in asked


def test_the_checker_of_the_example_accepts_any_right_output() -> None:
    _, gold = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    code = load_verifier("code")
    reference = code.parse_reference(json.loads(gold))
    for program, score in (("print(3, 4)", 1.0), ("print(5, 2)", 1.0), ("print(3, 5)", 0.0)):
        assert code.verify(f"```python\n{program}\n```", reference).score == score
    code.close()


def test_the_limits_of_a_program_have_the_defaults_of_the_table() -> None:
    table = TEXT.partition("| limit | default | bounds |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", table, re.MULTILINE)
    defaults = {name: int(value) for name, value in rows}
    assert parse_limits(defaults, Limits()) == Limits()
    assert {name.removesuffix("_mb") for name in defaults} == {
        n.removesuffix("_bytes") for n in asdict(Limits())
    }


MATRIX = "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"
TABLE = [
    ("1/2", "0.51", False), ("1/2", "50\\%", True), ("1/3", "0.333333", True), ("1/3", "0.333", False),
    ("1/3", "0.333334", False), ("50\\%", "50", True), ("75", "75\\%", True), ("0.25", "0.25\\%", False),
    ("5", "5 cm", True), ("2 m", "200 cm", True), ("5 cm", "5 m", False), ("30°", "30", True),
    ("30°", "π/6", True),
    ("30°", "30π", False), ("5", "x = 5", True), ("x = 5", "y = 5", False), ("x = 5", "2x = 10", False),
    ("2, 3", "3, 2", True), ("(2, 3)", "(3, 2)", False), ("1+√2, 1-√2", "1 ± √2", True),
    ("42", "42 or 43", False),
    ("\\{1, 2\\}", "\\{1, 2, 3\\}", False), ("[1, 3)", "1 ≤ x < 3", True), ("[1, 3)", "(1, 3)", False),
    ("x²+2x+1", "(x+1)²", True), ("x+2y=1", "2x+4y=2", True), ("x-1", "x+1", False),
    ("1011₂", "1011₃", False),
    ("1011₂", "11", False), ("55", "\\sum_{k=1}^{10} k", False),
    ("5000000", "5 million", True), ("42", "42 dozen", False), ("42", "42 pairs", False),
    ("42", "42 halves", False), ("2,000", "2{,}000", True), ("2,000", "(2, 0)", False),
    ("5", "x + y = 5", True), ("10", "2x = 10", False), ("red, blue", "blue and red", True),
    ("\\{1, 2\\}", "\\{1, 1, 2\\}", True), ("\\{1, 2\\}", "1, 1, 2", False), ("1024", "2^{10}", True),
    ("\\sin 20°", "\\cos 70°", True), ("391", "17·23", False), ("120", "5!", False),
    ("1/2", "\\sin 30°", False), ("96", "3·2^5", True), ("1+2\\sqrt{3}", "2\\sqrt{3} + 1", True),
    ("5000", "5·10^3", True), ("5", "\\sqrt{9 + 16}", False), ("128", "2^{3+4}", False),
    ("120", "5! = 120", True), ("6x", "2·3x", True), ("n(n-1)/2", "\\binom{n}{2}", True),
    ("5/6", "1/2 + 1/3", True), ("1023/1024", "1 - 1/2^{10}", True), ("π/3 + 1/2", "1/2 + π/3", True),
    ("S₁:S₂ = 7:32", "7:32", True), ("1/√6", "NO/BO = 1/√6", True), ("a:b = 3:4", "b:a = 4:3", True),
    ("2x+1", "y/x = 2x+1", False), ("5", "x/2 = 5", False),
    ("7654321", "7{,}\\! 654{,}\\! 321", True), ("7654", "7,\\,654", False), ("7654", "7\\,654", True),
    ("-5", "{-}5", True), ("-5", "\\mathord{-}5", True), ("x = 5", "x\\mathrel{=}5", True),
    ("x^5", "x^{+}5", False), ("-1/5", "\\frac{1}{-}5", False), ("-5", "negative 5", True),
    ("-5", "\\text{minus }5", True), ("-5", "non-negative 5", False), ("2", "5 minus 3", False),
    ("1/3", "0.(3)", True), ("0.1(6)", "1/6", True), ("2x", "0.5(4)x", True), ("2", "0.5(4) = 2", True),
    ("(5,2),(7,2)", "p=5, q=2; p=7, q=2", True), ("(p,q)=(5,2),(7,2)", "p=5, q=2; p=7, q=2", True),
    ("(5,2),(7,2)", "p=5, p=7, q=2, q=2", False), ("(5,2),(7,2)", "p=2, q=5; p=2, q=7", False),
    ("k\\pi, k \\in \\mathbb{Z}", "n\\pi, n is an integer", True),
    ("\\{k\\pi : k \\in \\mathbb{Z}\\}", "n\\pi for any integer n", True),
    ("k\\pi, k \\in \\mathbb{Z}", "k\\pi", False), ("k\\pi", "k\\pi, k \\in \\mathbb{Z}", True),
    ("k\\pi, k \\in \\mathbb{Z}", "k\\pi, k is an even integer", False),
    ("17:30", "5:30 PM", True), ("5:30 p.m.", "17:30", True), ("17:30", "5:30", False),
    ("5:30 PM", "5:30 AM", False), ("5:30 PM", "5:30", True),
    (MATRIX, "[[1,2],[3,4]]", True), (MATRIX, "((1,2),(3,4))", False), (MATRIX, "[1,2],[3,4]", False),
    ("x^2 + C", "x^2 + K", True), ("x^2 + C", "x^2 + \\text{const}", True), ("x^2 + C", "x^2", False),
    ("x^2 + C", "x^2 + d", False), ("2RC + R + C", "2RC + R + K", False), ("x^2", "x^2 + C", False),
    ("(0, 1)", "0 < f(x) < 1", True), ("0 < f(x) < 1", "0 < x < 1", False),
]  # fmt: skip


def test_every_entry_of_the_table_of_rules_holds() -> None:
    math = load_verifier("math")
    for gold, answer, expected in TABLE:
        verdict = math.verify(f"\\boxed{{{answer}}}", math.parse_reference(gold))
        assert (verdict.outcome.value == "correct") is expected, (gold, answer)


def test_the_judge_of_groups_takes_the_options_that_the_example_shows() -> None:
    section = yaml.safe_load(GROUP_JUDGE)["verifying"]
    assert isinstance(load_verifier(section["default"], section["options"]), GroupJudge)
