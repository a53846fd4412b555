"""Reasoning pays on a gym's tasks: a base model that mostly answers at once learns to work first."""

import subprocess
import sys
from pathlib import Path

import pytest
from fakes.gym import NEEDS_GYM

from asyncrl.run.metrics_file import written_rows

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_reasoning_cpu.yaml"


@NEEDS_GYM
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_model_finds_out_that_working_pays(tmp_path: Path) -> None:
    places = {
        "run_folder": tmp_path / "run",
        "prepare.folder": tmp_path / "made",
        "model.path": tmp_path / "made" / "model",
    }
    words = [f"{key}={value}" for key, value in places.items()]
    command = [sys.executable, "-m", "asyncrl.commands.main", "train", str(RECIPE), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written_rows(tmp_path / "run" / "metrics.jsonl")
    evaluations = [row for row in rows if row["kind"] == "eval"]
    before, after = evaluations[0], evaluations[-1]
    assert (before["when"], after["when"]) == ("before", "after")
    # Four runs: 21% to 27% before, 93% to 98% after, in 5 and 49 tokens; sampled, 22% to 25% and 62% to 65%.
    assert before["greedy_accuracy"] < 0.5
    assert after["greedy_accuracy"] > 0.85
    assert after["avg_at_k"] > before["avg_at_k"] + 0.25
    assert after["response_tokens_mean"] > 4 * before["response_tokens_mean"]
