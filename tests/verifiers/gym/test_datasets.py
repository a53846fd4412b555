"""Datasets are found by name, mistakes are named, and no scorer runs what a model writes."""

import ast
import importlib.metadata
import inspect
import sys
from pathlib import Path

import pytest
from fakes.gym import NEEDS_GYM, gym_gold

from verifiers.gym.datasets import EVALUATED, LITERALS, build_dataset, installed_version, load_dataset
from verifiers.gym.verifier import GymVerifier
from verifiers.verdict import Outcome


@NEEDS_GYM
@pytest.mark.parametrize(
    ("name", "config", "complaint"),
    [
        ("countdwn", {}, r"has no dataset 'countdwn'\. Did you mean 'countdown'\?$"),
        ("qqqq", {}, r"has no dataset 'qqqq'\. Its datasets: ab, acre, .*, zebra_puzzles\.$"),
        (
            "composite",
            {},
            r"'composite' of reasoning-gym has no tasks of its own: .* list them in data\.train",
        ),
        ("gcd", {"min_number": 2}, r"config of 'gcd' has no key 'min_number'\. Did you mean 'min_numbers'\?"),
        ("gcd", {"seed": 2}, r"config of 'gcd' has 'seed': set `seed` of the source instead\."),
        (
            "chain_sum",
            {"min_terms": 5, "max_terms": 2},
            r"'max_terms': 2\}: max_terms must be >= min_terms\.",
        ),
        ("gcd", {"min_numbers": "two"}, r"The config of 'gcd' is \{'min_numbers': 'two'\}: .*"),
    ],
)
def test_a_mistake_is_named_with_what_was_probably_meant(name: str, config: dict, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        build_dataset(name, config, seed=0, size=10)


def test_without_the_package_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ValueError, match=r"is not installed\. Run `make setup GYM=1`"):
        installed_version()


def _evaluating(source: str) -> set[str]:
    """Names of functions that evaluate text, in the methods that a scorer may call."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("eval", "exec", "parse_expr", "sympify", "S", "compile", "loads", "parse_latex"):
                found.add(name)
    return found


@NEEDS_GYM
def test_each_scorer_that_evaluates_its_answer_is_known():
    """Fails when a new version of the package evaluates answers in another place."""
    build_dataset("gcd", {}, seed=0, size=1)
    from reasoning_gym.factory import DATASETS

    evaluated, literal = set(), set()
    for name, (kind, _) in DATASETS.items():
        scorer = Path(inspect.getfile(kind.score_answer))
        tree = ast.parse(scorer.read_text())
        methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        called = set().union(
            *(_evaluating(ast.unparse(node)) for node in methods if node.name == "score_answer")
        )
        if called & {"parse_expr", "sympify", "S", "exec", "compile", "parse_latex"}:
            evaluated.add(name)
        if "eval" in called:
            literal.add(name)
    assert evaluated == EVALUATED
    assert literal == LITERALS


@NEEDS_GYM
@pytest.mark.parametrize("name", sorted(EVALUATED | LITERALS))
def test_no_scorer_runs_what_the_model_writes(name: str, tmp_path: Path):
    verifier = GymVerifier()
    reference = verifier.parse_reference(gym_gold(name))
    flag = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(flag)!r}).touch()"
    for text in (code, f"[{code}]", f"str({code})"):
        verdict = verifier.verify(f"<answer>{text}</answer>", reference)
        assert verdict.outcome is Outcome.WRONG
        assert not flag.exists()


@NEEDS_GYM
def test_an_answer_that_is_a_list_still_has_its_partial_score():
    dataset = load_dataset("string_insertion", "{}", seed=3, size=50)
    entry = dataset[0]
    assert dataset.score_answer(str(list(entry["answer"])), entry) == 0.1
    assert "eval" in vars(sys.modules[type(dataset).__module__])
