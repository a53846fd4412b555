"""Batches of a known age, sampled and graded by one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.models import reference_model, write_model

from asyncrl.examples.rows import EOS_ID, VOCABULARY, build_tokenizer, write_tokenizer
from asyncrl.recipe.file import load_recipe
from asyncrl.records import Batch, ScoredSequence
from tests.benchmarks.forced_lag import Sampler, Update, mean_reward, train
from verifiers.registry import build_verifier

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_arithmetic_cpu.yaml"
ROWS = [{"prompt": f"{i}+4=", "answer": str(i + 4), "verifier": "math"} for i in range(5)]


class FakeLearner:
    def __init__(self) -> None:
        self.version = 0

    def step(self, batch: Batch) -> dict[str, float]:
        assert batch.taken_version == self.version
        self.version += 1
        return {"loss": float(self.version)}


class FakeSampler:
    """A batch is one sequence, whose tokens are of the version that the weights name."""

    def batch(self, weights: int, version: int, place: int) -> Batch:
        assert weights == version
        one = ScoredSequence(f"{place}", [3], [4], [-1.0], [version], [False], advantage=0.0, reward=place)
        return Batch(version, 1.0, [one])


def updates(lag: int, num_updates: int) -> Iterator[Update]:
    learner = FakeLearner()
    return train(learner, FakeSampler(), lag, num_updates, lambda trained, _: trained.version)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_update_from_version_s_learns_what_version_s_less_the_lag_sampled(lag: int):
    found = list(updates(lag, 6))
    ages = [found.version - 1 - found.batch.sequences[0].token_versions[0] for found in found]
    assert ages == [min(lag, step) for step in range(6)]
    assert [found.version for found in found] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lag", [0, 3])
def test_each_batch_has_the_next_rows(lag: int):
    assert [mean_reward(found.batch) for found in updates(lag, 6)] == [0, 1, 2, 3, 4, 5]


def test_a_batch_is_graded_by_the_verifier_of_the_rows_and_has_groups_of_one_prompt(tmp_path: Path):
    folder = write_model(tmp_path, vocab_size=len(VOCABULARY), eos_token_id=EOS_ID)
    write_tokenizer(folder, build_tokenizer())
    overrides = [f"model.path={folder}", "rollout.groups_per_batch=3", "rollout.samples_per_group=4"]
    recipe = load_recipe(RECIPE, overrides)
    sampler, weights = Sampler(recipe, ROWS, [0]), reference_model(folder).state_dict()
    torch.manual_seed(0)
    batch = sampler.batch(weights.items(), 7, place=1)
    assert [len({tuple(one.prompt_tokens) for one in batch.sequences[i : i + 4]}) for i in (0, 4, 8)] == [
        1
    ] * 3
    # Rows 3, 4 and, from the beginning again, 0.
    first = {tuple(one.prompt_tokens) for one in batch.sequences[8:]}
    again = sampler.batch(weights.items(), 7, place=5)
    assert first == {tuple(one.prompt_tokens) for one in again.sequences[:4]}
    assert {version for one in batch.sequences for version in one.token_versions} == {7}
    assert all(len(one.behavior_logprobs) == len(one.response_tokens) <= 64 for one in batch.sequences)
    verifier, tokenizer = build_verifier("math", {}), build_tokenizer()
    for place, one in enumerate(batch.sequences):
        row = ROWS[(3 + place // 4) % 5]
        text = tokenizer.decode(one.response_tokens)
        assert one.reward == verifier.verify(text, verifier.parse_reference(row["answer"])).score
    assert 0 <= sampler.accuracy(weights.items(), ROWS, 0.0) <= 1
