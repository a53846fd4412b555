"""The comparison with TRL trains the same thing: settings and rewards."""

from pathlib import Path

import pytest

from asyncrl.recipe.file import parse_recipe
from tests.benchmarks.trl.grading import is_correct
from tests.benchmarks.trl_runs import settings_of
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

RECIPE = {
    "name": "sums",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl", "heldout": "heldout.jsonl"},
    "rollout": {"groups_per_batch": 4, "samples_per_group": 3, "max_new_tokens": 50, "temperature": 0.9},
    "algorithm": {"advantage": "dr_grpo", "clip_high": 0.28},
    "trainer": {"learning_rate": 2e-4, "num_steps": 7},
    "evaluation": {"every_steps": 5, "num_tasks": 9},
}


def test_the_settings_are_the_recipes(tmp_path: Path) -> None:
    recipe = parse_recipe(RECIPE, source="test")
    settings = settings_of(recipe, folder=tmp_path, target=0.9, cores=(0, 1))
    expected = {
        "prompts_per_batch": 4,
        "samples_per_prompt": 3,
        "sequences_per_micro_batch": 12,
        "max_new_tokens": 50,
        "temperature": 0.9,
        "learning_rate": 2e-4,
        "adam_beta2": 0.95,
        "clip_high": 0.28,
        "advantage": "dr_grpo",
        "max_steps": 7,
        "evaluate_every": 5,
        "num_heldout": 9,
        "target": 0.9,
        "threads": 2,
    }
    assert {name: settings[name] for name in expected} == expected
    assert Path(settings["train"]).is_absolute()


@pytest.mark.parametrize(
    "response",
    [
        "\\boxed{432}",
        "\\boxed{433}",
        "<think>7+5=12;4+8+1=13</think>\\boxed{432}",
        "\\boxed{1}<think>\\boxed{432}</think>",
        "<think>\\boxed{432}",
        "</think>\\boxed{1}</think>\\boxed{0432}",
        "\\boxed{432",
        "\\boxed{}",
        "\\boxed{4+3}",
        "432",
        "",
    ],
)
def test_the_reward_is_the_math_verifiers(response: str) -> None:
    verifier = MathVerifier()
    verdict = verifier.verify(response, verifier.parse_reference("432"))
    assert is_correct(response, "432") == (verdict.outcome is Outcome.CORRECT)
