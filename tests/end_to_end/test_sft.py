"""Supervised fine-tuning as a user starts it: the real trainer and no server; killed once on the way."""

import json
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

NUM_STEPS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A run that was killed after a step that no checkpoint has, and resumed."""
    run = WholeRun(
        tmp_path_factory.mktemp("sft"),
        rollout=None,
        serving=None,
        stage="sft",
        sft={"rows_per_batch": 8},
        evaluation={"every_steps": 4, "num_tasks": 16},
    )
    write_rows(run.folder)
    run.start().wait_for_step(6)
    run.kill()
    assert run.process is not None
    run.process.wait()
    assert run.start().finish() == 0, run.output()
    return run


def write_rows(folder: Path) -> None:
    for name in ("train.jsonl", "heldout.jsonl"):
        rows = [{"prompt": f"{n % 10}+{n % 7}=", "response": str(n % 10 + n % 7)} for n in range(70)]
        (folder / name).write_text("\n".join(map(json.dumps, rows)))


def test_a_killed_run_takes_the_same_steps_again_to_the_last_digit(run: WholeRun) -> None:
    written = [json.loads(line) for line in (run.run_folder / "metrics.jsonl").read_text().splitlines()]
    losses: dict[int, set[float]] = {}
    for row in written:
        if row["kind"] == "step":
            losses.setdefault(row["step"], set()).add(row["loss"])
    steps = [row["step"] for row in written if row["kind"] == "step"]
    assert len(steps) > NUM_STEPS and list(losses) == [*range(1, NUM_STEPS + 1)]
    assert all(len(found) == 1 for found in losses.values()), losses


def test_the_loss_falls_on_the_rows_and_on_held_out_ones(run: WholeRun) -> None:
    steps = run.steps()
    assert steps[-1]["loss"] < 0.7 * steps[0]["loss"]
    heldout = [row["heldout_loss"] for row in steps if "heldout_loss" in row]
    assert len(heldout) == 3
    assert heldout[-1] < 0.7 * steps[0]["heldout_loss_at_start"]
    assert "reward_mean" not in steps[0] and "staleness_max" not in steps[0]


def test_each_row_that_was_taken_is_trained_once_and_no_server_started(run: WholeRun) -> None:
    assert run.query("SELECT state, count(*) FROM groups GROUP BY state") == [("trained", NUM_STEPS * 8)]
    # The first epoch has each row once.
    assert run.query("SELECT count(DISTINCT task_id) FROM groups WHERE group_id < 70") == [(70,)]
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"] > 0
    assert not list((run.run_folder / "logs").glob("server*"))
    assert (run.run_folder / "report.html").is_file()
    assert (run.run_folder / f"checkpoints/step-{NUM_STEPS}/hf/model.safetensors").is_file()
