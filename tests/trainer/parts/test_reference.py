"""The reference next to a policy in training: when it follows, and what checkpoints keep of it."""

from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, is_same, make_learner
from fakes.models import random_batch

from asyncrl.errors import InputError
from asyncrl.model.folder import check_model_folder
from asyncrl.model.memory import rank_memory
from asyncrl.model.weights import num_parameters
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.parts.reference import Reference
from asyncrl.trainer.step.learner import Learner

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
        (
            {"coefficient": 0.0},
            "kl.refresh_steps is 2, but nothing reads it: set algorithm.kl.coefficient",
        ),
        (
            {"refresh_steps": 0, "refresh_resets_optimizer": True},
            "refresh_resets_optimizer is true, but nothing reads it: set algorithm.kl.refresh_steps",
        ),
    ],
)
def test_a_refresh_of_nothing_is_refused(folder: Path, kl: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        refreshed_learner(folder, **kl)
