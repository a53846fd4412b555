"""The examples of verifiers/README.md work as they stand there."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import yaml

from sandbox.command import Limits, parse_limits
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


def test_the_judge_of_groups_takes_the_options_that_the_example_shows() -> None:
    section = yaml.safe_load(GROUP_JUDGE)["verifying"]
    assert isinstance(load_verifier(section["default"], section["options"]), GroupJudge)
