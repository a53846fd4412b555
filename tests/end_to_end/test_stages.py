"""A chain of supervised fine-tuning and preference optimization as a user starts it: no server.

It is killed once, in its first stage.
"""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from fakes.whole_run import WholeRun

from asyncrl.launch.base_model import fetch_model
from asyncrl.observe.metrics.metrics_file import written_rows
from asyncrl.recipe.file import load_recipe

NUM_STEPS = 12
PAIRS = {
    "name": "pairs",
    "stage": "dpo",
    "run_folder": "second",
    "model": {"path": "model", "context_tokens": 32},
    "data": {"train": "pairs.jsonl", "heldout": "pairs.jsonl"},
    "dpo": {"rows_per_batch": 8, "beta": 0.5},
    "trainer": {"num_steps": 3, "learning_rate": 1e-3},
    "evaluation": {"every_steps": 0, "num_tasks": 16},
}


class ChainedRun(WholeRun):
    """The first stage of a chain."""

    command = "chain"

    def words(self) -> list[str]:
        return [str(self.folder / "chain.yaml")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """The first run, killed after a step that no checkpoint has and resumed; the second begins with it."""
    run = ChainedRun(
        tmp_path_factory.mktemp("sft"),
        rollout=None,
        serving=None,
        stage="sft",
        sft={"rows_per_batch": 8},
        trainer={"keep_best": True},
        evaluation={"every_steps": 4, "num_tasks": 16},
    )
    write_rows(run.folder)
    second = {"recipe": "pairs.yaml", "overrides": ["model.path=run@best"]}
    (run.folder / "pairs.yaml").write_text(yaml.safe_dump(PAIRS))
    (run.folder / "chain.yaml").write_text(yaml.safe_dump({"stages": ["recipe.yaml", second]}))
    run.start().wait_for_step(6)
    run.kill()
    assert run.process is not None
    run.process.wait()
    assert run.start().finish(seconds=900.0) == 0, run.output()
    return run


def write_rows(folder: Path) -> None:
    for name in ("train.jsonl", "heldout.jsonl"):
        rows = [{"prompt": f"{n % 10}+{n % 7}=", "response": str(n % 10 + n % 7)} for n in range(70)]
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    pairs = [{"prompt": f"{n % 10}+{n % 7}=", "chosen": "7", "rejected": str(n)} for n in range(10, 50)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))


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


def test_the_second_stage_begins_with_the_best_step_of_the_first(run: WholeRun) -> None:
    assert "stage 1 of 2: sevens" in run.output() and "stage 2 of 2: pairs" in run.output()
    stated = yaml.safe_load((run.folder / "second/recipe.yaml").read_text())
    _, best = min((row["heldout_loss"], row["step"]) for row in run.steps() if "heldout_loss" in row)
    assert stated["model"]["path"] == str(run.run_folder / f"checkpoints/step-{best}/hf")


def test_a_step_that_has_its_checkpoint_alone_is_exported_when_a_model_names_it(run: WholeRun) -> None:
    own = run.run_folder / f"checkpoints/step-{NUM_STEPS}/hf"
    before = (own / "model.safetensors").read_bytes()
    shutil.rmtree(own)
    recipe = load_recipe(run.folder / "pairs.yaml", [f"model.path={run.run_folder}@{NUM_STEPS}"])
    assert fetch_model(recipe).model.path == str(own)
    assert (own / "model.safetensors").read_bytes() == before and (own / "tokenizer.json").is_file()


def test_the_second_stage_learns_which_response_is_preferred(run: WholeRun) -> None:
    rows = written_rows(run.folder / "second/metrics.jsonl")
    steps = [row for row in rows if row["kind"] == "step"]
    assert len(steps) == 3
    # The policy begins as the reference.
    assert steps[0]["heldout_loss_at_start"] == pytest.approx(0.6931472, abs=1e-4)
    assert steps[-1]["heldout_loss"] < 0.68 and steps[-1]["heldout_dpo_accuracy"] > 0.8
    (sums,) = (run.folder / "second/reference").iterdir()
    # Each response of 24 pairs in three steps and of the held-out ones, once.
    assert 2 * 24 <= len(sums.read_bytes()) / 24 <= 2 * 40
