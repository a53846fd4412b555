"""A chain of supervised fine-tuning and preference optimization as a user starts it: no server.

It is killed twice, once in each stage.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.whole_run import WholeRun

from asyncrl.launch.prepare import fetch_model
from asyncrl.recipe.file import load_recipe

pytestmark = pytest.mark.slow
NUM_STEPS = 12
"""At least: a stage that was killed ends after its next checkpoint."""
NUM_PAIRS = 40
STAGES = {"sft": "run", "dpo": "second"}
"""Stage -> its run folder."""
RECIPES = {"sft": "recipe.yaml", "dpo": "pairs.yaml"}
PAIRS = {
    "name": "pairs",
    "stage": "dpo",
    "run_folder": "second",
    "model": {"path": "model", "context_tokens": 32},
    "data": {"train": "pairs.jsonl", "heldout": "pairs.jsonl"},
    "dpo": {"rows_per_batch": 8, "beta": 0.5},
    "trainer": {"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 4},
    "evaluation": {"every_steps": 0, "num_tasks": 16},
}


class ChainedRun(WholeRun):
    """The first stage of a chain, and the metrics of both."""

    command = "chain"

    def __init__(self, *arguments: Any, **sections: Any) -> None:
        super().__init__(*arguments, **sections)
        self.num_steps = dict.fromkeys(STAGES, NUM_STEPS)

    def words(self) -> list[str]:
        return [str(self.folder / "chain.yaml")]

    def metrics(self, stage: str) -> list[dict[str, Any]]:
        """The steps that a stage has taken, those that it took again too."""
        path = self.folder / STAGES[stage] / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        # The last line may be half written.
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if row["kind"] == "step"]

    def take(self, stage: str, num_steps: int) -> None:
        """Writes into the stage's recipe where it ends."""
        self.num_steps[stage] = num_steps
        path = self.folder / RECIPES[stage]
        recipe = yaml.safe_load(path.read_text())
        recipe["trainer"]["num_steps"] = num_steps
        path.write_text(yaml.safe_dump(recipe))

    def kill_in(self, stage: str) -> None:
        """Kills it behind its first checkpoint, before its end, which then is at a later checkpoint."""
        self.take(stage, 100_000)
        self.start().wait_for(lambda: len(self.metrics(stage)) >= 6, f"step 6 of {stage}", seconds=600.0)
        self.kill()
        assert self.process is not None
        self.process.wait()
        self.take(stage, max(NUM_STEPS, 4 * (self.metrics(stage)[-1]["step"] // 4 + 1)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ChainedRun:
    """Each stage is killed and resumed; the second begins with the model of the first."""
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
    for stage in STAGES:
        run.kill_in(stage)
    assert run.start().finish(seconds=900.0) == 0, run.output()
    return run


def write_rows(folder: Path) -> None:
    for name in ("train.jsonl", "heldout.jsonl"):
        rows = [{"prompt": f"{n % 10}+{n % 7}=", "response": str(n % 10 + n % 7)} for n in range(70)]
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    pairs = [
        {"prompt": f"{n % 10}+{n % 7}=", "chosen": "7", "rejected": str(n + 10)} for n in range(NUM_PAIRS)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_takes_the_same_steps_again_to_the_last_digit(run: ChainedRun, stage: str) -> None:
    found: dict[int, set[tuple[float, ...]]] = {}
    rows = run.metrics(stage)
    for row in rows:
        numbers = (row["loss"], row["grad_norm"], row.get("dpo_margin", 0.0))
        found.setdefault(row["step"], set()).add(numbers)
    # Those behind the checkpoint, again.
    assert len(rows) > run.num_steps[stage] and list(found) == [*range(1, run.num_steps[stage] + 1)]
    assert all(len(each) == 1 for each in found.values()), found


def test_the_loss_falls_on_the_rows_and_on_held_out_ones(run: ChainedRun) -> None:
    steps = run.steps()
    assert steps[-1]["loss"] < 0.7 * steps[0]["loss"]
    # A step that was taken again was measured again.
    heldout = {row["step"]: row["heldout_loss"] for row in steps if "heldout_loss" in row}
    assert list(heldout) == [*range(4, run.num_steps["sft"] + 1, 4)]
    assert heldout[steps[-1]["step"]] < 0.7 * steps[0]["heldout_loss_at_start"]
    assert "reward_mean" not in steps[0] and "staleness_max" not in steps[0]


def test_each_row_that_was_taken_is_trained_once_and_no_server_started(run: ChainedRun) -> None:
    num_steps = run.num_steps["sft"]
    assert run.query("SELECT state, count(*) FROM groups GROUP BY state") == [("trained", num_steps * 8)]
    # The first epoch has each row once.
    assert run.query("SELECT count(DISTINCT task_id) FROM groups WHERE group_id < 70") == [(70,)]
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"] > 0
    assert not list((run.run_folder / "logs").glob("server*"))
    assert (run.run_folder / "report.html").is_file()
    assert (run.run_folder / f"checkpoints/step-{num_steps}/hf/model.safetensors").is_file()


def test_the_second_stage_begins_with_the_best_step_of_the_first(run: ChainedRun) -> None:
    assert "stage 1 of 2: sevens" in run.output() and "stage 2 of 2: pairs" in run.output()
    stated = yaml.safe_load((run.folder / "second/recipe.yaml").read_text())
    _, best = min((row["heldout_loss"], row["step"]) for row in run.steps() if "heldout_loss" in row)
    assert stated["model"]["path"] == str(run.run_folder / f"checkpoints/step-{best}/hf")


def test_a_step_that_has_its_checkpoint_alone_is_exported_when_a_model_names_it(run: ChainedRun) -> None:
    last = run.num_steps["sft"]
    own = run.run_folder / f"checkpoints/step-{last}/hf"
    before = (own / "model.safetensors").read_bytes()
    shutil.rmtree(own)
    recipe = load_recipe(run.folder / "pairs.yaml", [f"model.path={run.run_folder}@{last}"])
    assert fetch_model(recipe).model.path == str(own)
    assert (own / "model.safetensors").read_bytes() == before and (own / "tokenizer.json").is_file()


def test_the_second_stage_learns_which_response_is_preferred(run: ChainedRun) -> None:
    steps = list({row["step"]: row for row in run.metrics("dpo")}.values())
    # The policy begins as the reference.
    assert steps[0]["heldout_loss_at_start"] == pytest.approx(0.6931472, abs=1e-4)
    assert steps[-1]["heldout_loss"] < 0.6 and steps[-1]["heldout_dpo_accuracy"] > 0.8
    (sums,) = (run.folder / "second/reference").iterdir()
    # The reference was asked once for each response, in all epochs and starts.
    assert len(sums.read_bytes()) == 24 * 2 * NUM_PAIRS
