"""A run whose responses are the test's: journaled by the queue itself, on a newcomer's rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.newcomer import write_project
from fakes.records import generate

from asyncrl.journal.starts import record_data
from asyncrl.journal.writer import Journal
from asyncrl.recipe.file import dump_recipe, load_recipe
from asyncrl.records import DropReason, Score, Task, VerifierSpec
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.run.folder import data_digests

Answers = Sequence[tuple[str, str]]
"""Text and recorded outcome of each response of a group."""


def write_audited_run(
    folder: Path,
    steps: Sequence[Mapping[int, Answers]],
    *,
    rows: str | None = None,
    overrides: Sequence[str] = (),
    dropped: Mapping[int, Answers] | None = None,
) -> Path:
    """`steps`: for each step the groups that it trained, by the line of their row in train.jsonl, as many in
    each. `rows` is what stands in train.jsonl; by default line n asks "n+1=". Groups of `dropped` had no
    signal."""
    write_project(folder)
    if rows is not None:
        (folder / "train.jsonl").write_text(rows)
    run = folder / "runs" / "mine"
    run.mkdir(parents=True)
    recipe = load_recipe(folder / "recipe.yaml", list(overrides))
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    journal = Journal(run / "journal.sqlite")
    record_data(journal, data_digests(recipe))
    settings = QueueSettings(
        groups_per_batch=len(steps[0]), samples_per_group=2, max_staleness=0, num_steps=len(steps) + 1
    )
    queue = ReplayQueue(journal, settings, has_signal=lambda group: True)
    for version, groups in enumerate(steps):
        queue.announce(version)
        for line, answers in groups.items():
            _play(queue, line, answers, version)
        assert queue.take(version) is not None
        queue.commit(version + 1, f"step-{version + 1}")
    queue.announce(len(steps))
    for line, answers in (dropped or {}).items():
        _play(queue, line, answers, len(steps), is_dropped=True)
    journal.close()
    return run


def _play(queue: ReplayQueue, line: int, answers: Answers, version: int, *, is_dropped: bool = False) -> None:
    group = queue.admit(Task(f"train:{line}", f"{line}+1=", (1,), str(line + 1), VerifierSpec("math")))
    generate(queue, group, version=version)
    scored = []
    for trajectory, (text, outcome) in zip(group.trajectories, answers, strict=True):
        queue.score(group, trajectory, score_of(outcome), text)
        if outcome != "fault":
            scored.append(trajectory.trajectory_id)
    if is_dropped:
        queue.drop(group, DropReason.NO_SIGNAL)
    else:
        queue.make_ready(group, {name: 0.5 for name in scored})


def score_of(outcome: str) -> Score:
    number: Any = {"correct": 1.0, "fault": None}.get(outcome, 0.0)
    return Score(outcome, number, number, None, f"recorded as {outcome}", 0.001)
