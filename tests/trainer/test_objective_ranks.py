"""Whole trainer processes under an algorithm that uses everything: two ranks make what one makes."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import random_batch, write_model
from fakes.queue_service import QueueService
from fakes.recipes import make_recipe

NUM_STEPS = 2
TRAINER = {"num_steps": NUM_STEPS, "checkpoint_every_steps": 2, "learning_rate": 1e-3}
ALGORITHM = {
    "advantage": "reinforce_pp_baseline",
    "importance_weight": "sequence_truncated",
    "rejection": ["second_moment", "token_veto"],
    "second_moment_limit": 2.0,
    "surrogate": "gspo",
    "reduction": "sequence_mean",
    "kl_coefficient": 0.1,
    "entropy_coefficient": 0.01,
}


def train(folder: Path, run: Path, **trainer: int) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Final weights, and the metrics of each step."""
    recipe = make_recipe(folder, algorithm=ALGORITHM, trainer=TRAINER | trainer)
    with QueueService([random_batch(step, num_groups=6) for step in range(NUM_STEPS)]) as queue:
        processes = start_trainer(run, queue.url, recipe)
        assert set(finish_trainer(processes)) == {0}, read_log(run)
        steps = [take.step_metrics for take in queue.takes[1:]]
    file = run / "checkpoints" / f"step-{NUM_STEPS}" / "hf" / "model.safetensors"
    return safetensors.torch.load_file(file), steps


def test_two_ranks_and_small_micro_batches_make_the_same_weights_as_one(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    mini = {"optimizer_steps_per_batch": 2}
    wanted, straight = train(folder, tmp_path / "one", **mini)
    got, split = train(folder, tmp_path / "two", **mini, num_processes=2, tokens_per_micro_batch=40)
    assert max((got[name] - wanted[name]).abs().max().item() for name in wanted) < 1e-5
    for one, two in zip(straight, split, strict=True):
        for name in one.keys() - {"num_packed_tokens"}:
            if not name.endswith("_seconds") and name != "tokens_per_second":
                assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5, nan_ok=True), name
        assert one["policy_kl"] > 0.0 and 0.0 < one["masked_share"] < 1.0
