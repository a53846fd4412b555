"""The loop on real engines under an algorithm that uses everything at once."""

from pathlib import Path
from statistics import fmean

import pytest
import torch
from fakes.whole_run import WholeRun
from safetensors.torch import load_file

ALGORITHM = {
    "advantage": "remax",
    "importance_weight": "sequence_truncated",
    "rejection": [{"name": "second_moment", "limit": 1.0}, "token_veto"],
    "surrogate": "gspo",
    # Sequence ratios move far less than those of tokens: with the clip of those it learns and falls back.
    "clip_low": 0.003,
    "clip_high": 0.004,
    "reduction": "sequence_mean",
    "kl": {"coefficient": 0.001},
    "entropy_bonus": {"coefficient": 0.001},
    "overlong": {"buffer_tokens": 2, "penalty": 0.01},
}


@pytest.mark.slow
def test_a_run_with_every_kind_of_term_learns_and_accounts_for_its_tokens(tmp_path: Path) -> None:
    run = WholeRun(
        tmp_path,
        algorithm=ALGORITHM,
        trainer={"optimizer_steps_per_batch": 2, "num_steps": 30},
        # Eight groups of eight samples and a greedy answer.
        serving={"max_running_requests": 72},
    ).start()
    assert run.finish() == 0, run.output()
    steps = run.steps()
    correct = [row["correct_mean"] for row in steps]
    assert fmean(correct[-3:]) > fmean(correct[:3]) + 0.2, correct
    # Responses run to their limit of 12 tokens here: the whole penalty, and correctness without it.
    assert all(row["reward_mean"] < row["correct_mean"] for row in steps)
    assert all(row["policy_kl"] > 0.0 for row in steps)
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_dropped:baseline"] > 0
    assert counters["tokens_generated"] == counters["tokens_trained"] + counters["tokens_dropped:baseline"]


@pytest.mark.slow
def test_a_run_of_which_no_token_survives_fails_with_the_cause_and_keeps_its_weights(
    tmp_path: Path, elsewhere: dict[str, list[str]]
) -> None:
    (tmp_path / "own.py").write_text("def none(inputs, algorithm): return inputs.behavior < -1e9\n")
    run = WholeRun(
        tmp_path,
        algorithm={"rejection": [f"{tmp_path}/own.py:none"]},
        rollout={"groups_per_batch": 4, "samples_per_group": 4},
        trainer={"num_steps": 3, "checkpoint_every_steps": 1, "optimizer_steps_per_batch": 2},
        serving=elsewhere,
    ).start()
    assert run.finish() == 1, run.output()
    steps = run.steps()
    assert [(row["step"], row["surviving_tokens"], row["optimizer_steps"]) for row in steps] == [
        (1, 0.0, 0.0),
        (2, 0.0, 0.0),
        (3, 0.0, 0.0),
    ]
    said = " ".join(run.output().split())
    assert "alarm left_out_tokens: step 1 trained no token" in said
    assert "TrainedNothing: no token was trained in steps 1 to 3:" in said
    assert "tokens were masked or rejected (algorithm.rejection)" in said
    # The batches are used up all the same, each once; the last one is not saved.
    states = dict(run.query("SELECT state, count(*) FROM groups WHERE state != 'open' GROUP BY state"))
    assert states.keys() == {"taken", "trained"} and sum(states.values()) == 12
    newest = run.run_folder / "publications" / "v3" / "model.safetensors"
    base, trained = (load_file(path) for path in (tmp_path / "model" / "model.safetensors", newest))
    assert all(torch.equal(base[name], tensor) for name, tensor in trained.items())


@pytest.mark.slow
@pytest.mark.parametrize("samples_per_group", [8, 1])
def test_ppo_with_a_critic_learns_also_from_one_sample_per_task(
    tmp_path: Path, samples_per_group: int
) -> None:
    run = WholeRun(
        tmp_path,
        algorithm={"advantage": "gae"},
        critic={"learning_rate": 1e-2, "warmup_steps": 2},
        rollout={"groups_per_batch": 64 // samples_per_group, "samples_per_group": samples_per_group},
        trainer={"num_steps": 20},
    ).start()
    assert run.finish() == 0, run.output()
    steps = run.steps()
    correct = [row["correct_mean"] for row in steps]
    assert fmean(correct[-3:]) > fmean(correct[:3]) + 0.2, correct
    assert [row["grad_norm"] is None for row in steps] == [True] * 2 + [False] * 18
    assert steps[-1]["value_mean"] > steps[0]["value_mean"] == 0.0
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"]
