"""The reference next to a policy in training: when it follows, and what checkpoints keep of it."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, is_same, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.model.folder import check_model_folder
from asyncrl.model.memory import rank_memory
from asyncrl.model.weights import num_parameters
from asyncrl.records import Batch
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.parts.reference import Reference
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.token_sums import NUM_SPLIT_SUMS, split_metrics

TRAINER = {"learning_rate": 1e-2, "optimizer_steps_per_batch": 2, "weight_decay": 0.1}


def refreshed_learner(folder: Path, dtype: str = "float32", **kl: object) -> Learner:
    algorithm = {"kl": {"coefficient": 0.5, "refresh_steps": 2, **kl}}
    return make_learner(folder, trainer=TRAINER, algorithm=algorithm, model={"dtype": dtype})


def test_the_policy_becomes_the_reference_every_n_steps(folder: Path):
    learner = refreshed_learner(folder)
    versions = [copy_weights(learner.model)]
    found = []
    for step in range(5):
        found.append(learner.step(random_batch(step))["reference_version"])
        assert is_same(copy_weights(learner.part(Reference).held.model), versions[int(found[-1])])
        versions.append(copy_weights(learner.model))
    assert found == [0.0, 0.0, 2.0, 2.0, 4.0]
    assert not is_same(versions[2], versions[4])


def test_without_the_key_it_stays_the_base_model(folder: Path):
    learner = refreshed_learner(folder, refresh_steps=0)
    base = copy_weights(learner.model)
    metrics = [learner.step(random_batch(step)) for step in range(3)]
    assert is_same(copy_weights(learner.part(Reference).held.model), base)
    assert not any("reference_version" in row for row in metrics)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_resumes_between_two_refreshes_bit_for_bit(folder: Path, tmp_path: Path, dtype: str):
    straight = refreshed_learner(folder, dtype, refresh_resets_optimizer=True)
    checkpoints = Checkpoints(tmp_path, num_kept=3)
    for step in range(3):
        straight.step(random_batch(step))
    # Of version 3: the reference is version 2, which no other part of the checkpoint holds.
    checkpoints.save(straight, 3)
    wanted = [straight.step(random_batch(step)) for step in (3, 4)]
    again = refreshed_learner(folder, dtype, refresh_resets_optimizer=True)
    assert checkpoints.load_newest(again) == 3
    assert [again.step(random_batch(step)) for step in (3, 4)] == wanted
    assert is_same(copy_weights(again.model), copy_weights(straight.model))
    assert is_same(
        copy_weights(again.part(Reference).held.model), copy_weights(straight.part(Reference).held.model)
    )


@pytest.mark.parametrize("resets", [True, False])
def test_an_optimizer_that_is_reset_steps_as_one_that_never_stepped(folder: Path, resets: bool):
    learner = refreshed_learner(folder, refresh_resets_optimizer=resets)
    for step in range(2):
        learner.step(random_batch(step))
    fresh = refreshed_learner(folder)
    with torch.no_grad():
        for own, other in zip(fresh.model.parameters(), learner.model.parameters(), strict=True):
            own.copy_(other)
    fresh.weights_changed()
    # Both take version 2 as their reference.
    metrics = [each.step(random_batch(2)) for each in (learner, fresh)]
    # The second mini-batch sees what the first step has made.
    assert (metrics[0]["loss"] == metrics[1]["loss"]) == resets
    assert is_same(copy_weights(learner.model), copy_weights(fresh.model)) == resets


def test_a_reference_that_is_refreshed_adds_its_weights_to_the_copy_of_a_checkpoint(folder: Path):
    shape = check_model_folder(folder)
    plain, more = (
        rank_memory(
            shape, dtype="bfloat16", tokens_per_micro_batch=64, has_reference=True, saves_reference=saves
        )
        for saves in (False, True)
    )
    assert more.checkpoint_copy - plain.checkpoint_copy == 2 * num_parameters(shape)


@pytest.mark.parametrize(
    ("kl", "words"),
    [
        ({"coefficient": 0.0}, "kl.refresh_steps is 2, but nothing reads it: set algorithm.kl.coefficient"),
        (
            {"refresh_steps": 0, "refresh_resets_optimizer": True},
            "refresh_resets_optimizer is true, but nothing reads it: set algorithm.kl.refresh_steps",
        ),
    ],
)
def test_a_refresh_of_nothing_is_refused(folder: Path, kl: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        refreshed_learner(folder, **kl)


COLUMNS = {
    *("mismatch_exact_kl", "mismatch_exact_ratio_max", "mismatch_exact_continued_kl"),
    *("staleness_exact_kl", "staleness_exact_ratio_max", "staleness_unknown_share"),
}
SPLIT = {"learning_rate": 1e-2, "optimizer_steps_per_batch": 2}


def make(folder: Path, *, splits: bool = True, **trainer: object) -> Learner:
    return make_learner(folder, trainer=SPLIT | {"splits_staleness": splits} | trainer)


def mixed_batch(step: int) -> Batch:
    """Tokens of staleness 0 to 2; the last of every other response was sampled on an older cache."""
    batch = random_batch(step, temperature=0.8)
    sequences = [
        dataclasses.replace(each, are_continued=[False] * (len(each.response_tokens) - 1) + [i % 2 == 0])
        for i, each in enumerate(batch.sequences)
    ]
    return dataclasses.replace(batch, sequences=sequences)


@pytest.fixture(scope="module")
def trained(folder: Path) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, float]]]:
    """Weights of versions 0 to 2, and the metrics of the three steps from them."""
    learner, versions, rows = make(folder), [], []
    for step in range(3):
        versions.append(copy_weights(learner.model))
        rows.append(learner.step(mixed_batch(step)))
    return versions, rows


def test_both_factors_are_those_of_transformers_in_float64(
    folder: Path, trained: tuple[list[dict[str, torch.Tensor]], list[dict[str, float]]]
):
    versions, rows = trained
    model = reference_model(folder).double()

    def under(version: int) -> list[torch.Tensor]:
        model.load_state_dict(versions[version])
        with torch.no_grad():
            return [reference_logprobs(model, each, 0.8) for each in batch.sequences]

    batch = mixed_batch(2)
    found = [under(version) for version in range(3)]
    plain, continued, stale = list[float](), list[float](), list[float]()
    for i, each in enumerate(batch.sequences):
        for t, version in enumerate(each.token_versions):
            own = found[version][i][t].item()
            (continued if each.are_continued[t] else plain).append(own - each.behavior_logprobs[t])
            if version < 2:
                stale.append(found[2][i][t].item() - own)
    assert len(stale) > 20 and len(continued) == 6
    row = rows[-1]
    for name, logs in (
        ("mismatch_exact_kl", plain),
        ("mismatch_exact_continued_kl", continued),
        ("staleness_exact_kl", stale),
    ):
        assert row[name] == pytest.approx(sum(math.exp(x) - 1 - x for x in logs) / len(logs), rel=1e-4), name
    assert row["mismatch_exact_ratio_max"] == pytest.approx(math.exp(max(plain)), rel=1e-4)
    assert row["staleness_exact_ratio_max"] == pytest.approx(math.exp(max(stale)), rel=1e-4)
    assert row["staleness_unknown_share"] == 0.0
    # The mixture of both factors, which the other columns have, is neither.
    assert abs(row["staleness_kl"] - row["staleness_exact_kl"]) > 0.01


def test_the_split_does_not_depend_on_micro_batches_and_changes_nothing_else(
    folder: Path, trained: tuple[list[dict[str, torch.Tensor]], list[dict[str, float]]]
):
    small, off = make(folder, tokens_per_micro_batch=30), make(folder, splits=False)
    on = make(folder)
    for step, wanted in enumerate(trained[1]):
        found = small.step(mixed_batch(step))
        assert found.keys() == wanted.keys() and found.keys() >= COLUMNS
        for name in COLUMNS:
            assert found[name] == pytest.approx(wanted[name], rel=1e-3, nan_ok=True), (step, name)
        rows = [each.step(mixed_batch(step)) for each in (on, off)]
        assert not rows[1].keys() & COLUMNS
        assert repr({name: rows[0][name] for name in rows[1]}) == repr(rows[1])
    left, right = copy_weights(on.model), copy_weights(off.model)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_without_staleness_the_split_is_the_mismatch_to_the_last_digit(folder: Path):
    batch = random_batch(3)
    fresh = dataclasses.replace(
        batch,
        sequences=[
            dataclasses.replace(each, token_versions=[3] * len(each.response_tokens))
            for each in batch.sequences
        ],
    )
    row = make(folder).step(fresh)
    assert row["mismatch_exact_kl"] == row["mismatch_kl"]
    assert row["mismatch_exact_ratio_max"] == row["mismatch_ratio_max"]
    assert row["staleness_unknown_share"] == 0.0
    assert all(math.isnan(row[f"staleness_exact_{name}"]) for name in ("kl", "ratio_max"))


def test_tokens_of_versions_before_a_resume_are_counted_and_left_out(folder: Path):
    learner = make(folder)
    learner.step(random_batch(2))
    batch = random_batch(3)
    row = learner.step(batch)
    versions = [version for each in batch.sequences for version in each.token_versions]
    assert 0 < versions.count(1) < len(versions)
    assert row["staleness_unknown_share"] == pytest.approx(versions.count(1) / len(versions))
    assert row["staleness_exact_kl"] > 0


def test_a_step_without_tokens_or_without_the_key_has_no_such_column():
    assert split_metrics(torch.zeros(NUM_SPLIT_SUMS), {}) == {}


def test_a_run_without_stale_tokens_refuses_it(folder: Path):
    with pytest.raises(
        InputError, match=r"trainer\.splits_staleness is true but rollout\.max_staleness is 0"
    ):
        make_recipe(folder, trainer={"splits_staleness": True}, rollout={"max_staleness": 0})
