"""`asyncrl difficulty`: reads a run, writes the column, and refuses what it cannot do in one sentence."""

import json
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import write_project
from fakes.records import generate, make_score

from asyncrl.journal.starts import record_data
from asyncrl.journal.writer import Journal
from asyncrl.recipe.file import dump_recipe, load_recipe
from asyncrl.records import Task, VerifierSpec
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.run.folder import data_digests


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that visited line 1 twice, right in 1 and in 0 of 2 samples, and line 2 once, all right."""
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    (folder / "recipe.yaml").write_text(dump_recipe(recipe))
    journal = Journal(folder / "journal.sqlite")
    record_data(journal, data_digests(recipe))
    settings = QueueSettings(groups_per_batch=9, samples_per_group=2, max_staleness=1, num_steps=9)
    queue = ReplayQueue(journal, settings, has_signal=lambda group: True)
    queue.announce(0)
    label = Path(recipe.data.train_sources()[0].path or "").stem
    for line, rewards in ((1, (1.0, 0.0)), (2, (1.0, 1.0)), (1, (0.0, 0.0))):
        group = queue.admit(Task(f"{label}:{line}", "1+1=", (1,), "2", VerifierSpec("math")))
        generate(queue, group, version=0)
        for trajectory, reward in zip(group.trajectories, rewards, strict=True):
            queue.score(group, trajectory, make_score(reward), "")
        queue.make_ready(group, {t.trajectory_id: 0.0 for t in group.trajectories})
    journal.close()
    return folder


def data_of(run: Path) -> Path:
    return Path(load_recipe(run / "recipe.yaml").data.train_sources()[0].path or "")


def test_a_run_is_read_and_its_data_gets_the_column(run: Path, command: Command) -> None:
    said = command("difficulty", run).out
    assert "pass rates of 2 rows" in said and "0.2 to 0.3" in said and "Mean 62.5%" in said
    path = data_of(run)
    copy = path.with_name(f"{path.stem}.pass_rate.jsonl")
    found = [json.loads(line)["pass_rate"] for line in copy.read_text().splitlines()]
    assert found[:3] == [0.25, 1.0, None]
    # What it writes is what data.filter reads.
    words = ["name=other", f"data.train={copy}", "data.filter=pass_rate in [0.05, 0.95]"]
    said = command("check", "recipe.yaml", *words).out
    assert f"# filter    pass_rate in [0.05, 0.95]: leaves out {len(found) - 1} rows, keeps 1" in said


def test_a_run_whose_data_changed_gets_no_column(run: Path, command: Command) -> None:
    path = data_of(run)
    path.write_text(json.dumps({"prompt": "9+9=", "answer": "18"}) + "\n" + path.read_text())
    assert "data.train has changed since" in command("difficulty", run, code=2).err
    assert "pass rates of 2 rows" in command("difficulty", run, "--no-copy").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["recipe.yaml", "--out", "nowhere"], "--out is nowhere, which is not a folder."),
        (["runs/mine", "-n", "4"], "-n and --num-rows are for a recipe; a run is read as it is."),
        (["recipe.yaml", "data.filter=pass_rate < 1"], 'no "pass_rate", which data.filter or data.selection'),
    ],
)
def test_a_mistake_is_one_sentence(run: Path, command: Command, words: list[str], sentence: str) -> None:
    said = command("difficulty", *words, code=2).err
    assert sentence in said and "Traceback" not in said
