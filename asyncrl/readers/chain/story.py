"""A chain of stages as one story: what each stage began with, ended with, brought and cost.

Read from the chain's folder and from those of its runs, at any time. What nothing recorded is null.
"""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.journal.conservation import GENERATED, TRAINED
from asyncrl.journal.evaluations import read_answers
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.journal.starts import read_usage
from asyncrl.observe.metrics.estimates import Difference, paired_difference
from asyncrl.readers.compare.recorded import HELDOUT, Scores, common, greedy_scores, sampled_scores
from asyncrl.readers.report.collect import base_and_last, tokens_of
from asyncrl.readers.report.costs import HOUR, is_number, time_of
from asyncrl.readers.report.schema import Part
from asyncrl.readers.status import NOT_STARTED, cause_of, stamp, state_of
from asyncrl.recipe.file import shown
from asyncrl.recipe.stage import OF_STAGES
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.run.chain import CHAIN, SELECTION, ChainFolder, SelectionRecord, StageRecord
from asyncrl.run.checkpoints import EXPORT
from asyncrl.run.metrics_file import Row, flat, read_metrics
from asyncrl.run.status import read_status
from asyncrl.system.files import read_text
from asyncrl.system.places import CHECKPOINTS, JOURNAL, METRICS, RECIPE

MOST_KEPT = 64
"""Runs of which what was read is kept while their files do not change."""
SETTINGS = ("num_tasks", "template", "max_new_tokens", "temperature", "k")
"""Columns of an evaluation that say how it asked: results compare where they are equal."""


class Selected(Part):
    """Lines of a selection, and what it saw."""

    lines: int
    rows: int
    """Rows that have a line."""
    rows_seen: int
    """Rows that were looked at."""
    responses_seen: int
    responses_generated: int


class StageStory(Part):
    number: int
    name: str
    kind: str
    """select, sft, dpo or rl."""
    place: str
    """The run folder; of a selection its file."""
    state: str
    """As `asyncrl status` calls it; of a selection also selecting."""
    cause: str | None
    """Error that ended a run that failed."""
    began_with: str | None
    """Model, in words: a stage and its step, or the path."""
    ended_with: str | None
    steps: int | None
    num_steps: int | None
    before: Row | None
    """Held-out evaluation before the first step, as its row in metrics.jsonl."""
    after: Row | None
    """The newest one after a step."""
    changes: dict[str, Difference]
    """greedy or avg -> after - before, paired over tasks, with its 95% interval."""
    heldout_loss_before: float | None
    heldout_loss_after: float | None
    curve: list[list[float]]
    """[step, greedy accuracy, low, high] of each held-out evaluation."""
    wall_seconds: float | None
    """Over all starts, as are the CPU hours."""
    cpu_hours: float | None
    tokens_generated: int | None
    """Sampled by servers, without evaluations; 0 where rows are learned."""
    tokens_trained: int | None
    """Tokens in the losses."""
    selected: Selected | None


class ChainStory(Part):
    written_seconds: float
    """Unix time."""
    name: str
    folder: str
    file: str
    """File that lists the stages."""
    state: str
    """finished, not started, the state of the stage that runs, or stopped."""
    stages: list[StageStory]
    remarks: list[str]
    """Remarks that a reader needs before the numbers."""


def is_chain(folder: Path) -> bool:
    return (folder / CHAIN).is_file()


def runs_of(folder: Path) -> list[Path]:
    """The run folders of a chain's stages that have begun, in their order."""
    record = ChainFolder(folder).record()
    stages = [] if record is None else record.stages
    places = [found_place(stage, folder) for stage in stages if stage.kind != SELECTION]
    return [run for run in places if (run / RECIPE).is_file()]


def read_story(folder: Path) -> ChainStory:
    """Raises InputError for a folder of no chain, and for files that are damaged."""
    chain = ChainFolder(folder)
    record = chain.record()
    if record is None:
        raise InputError(f"{folder} is not the folder of a chain: it has no {CHAIN}.")
    stages: list[StageStory] = []
    for number, stage in enumerate(record.stages, start=1):
        if stage.kind == SELECTION:
            stages.append(_selection(number, stage, chain.selection(number), stages))
        else:
            stages.append(_trained(number, stage, folder, stages))
    return ChainStory(
        written_seconds=round(time.time(), 3),
        name=record.name,
        folder=str(folder.absolute()),
        file=record.file,
        state=_state(stages),
        stages=stages,
        remarks=_remarks(stages),
    )


def _state(stages: Sequence[StageStory]) -> str:
    present = next((stage.state for stage in stages if stage.state != "finished"), "finished")
    has_begun = any(stage.state != NOT_STARTED for stage in stages)
    # Between two stages, or after a kill there.
    return "stopped" if present == NOT_STARTED and has_begun else present


def _selection(
    number: int, stage: StageRecord, record: SelectionRecord | None, earlier: Sequence[StageStory]
) -> StageStory:
    state = NOT_STARTED
    if record is not None:
        state = record.state
        if state == "running":
            state = "selecting" if record.is_running() else "stopped"
    found = None if record is None else record.account
    return _story(
        number,
        stage,
        state,
        began_with=None if record is None else _asked(record, earlier),
        wall_seconds=None if record is None else record.wall_seconds,
        cpu_hours=None if record is None else record.cpu_seconds / HOUR,
        tokens_generated=None if found is None else int(found["generated_tokens"]),
        selected=None if found is None or record is None else _selected(found, record.num_lines or 0),
    )


def _asked(record: SelectionRecord, earlier: Sequence[StageStory]) -> str:
    if record.model is not None:
        return model_words(record.model, earlier)
    names = {stage.place: stage.name for stage in earlier}
    run = str(record.settings["select"])
    return f"responses of {names.get(run, shown(Path(run)))}"


def _selected(account: dict[str, Any], lines: int) -> Selected:
    rows = account["rows"]
    left_out = sum(count for fate, count in rows.items() if fate in ("not of --rows", "not of --source"))
    return Selected(
        lines=lines,
        rows=rows.get("written", 0),
        rows_seen=account["seen"]["rows"] - left_out,
        responses_seen=account["seen"]["responses"],
        responses_generated=account["generated"],
    )


def model_words(path: str, earlier: Sequence[StageStory]) -> str:
    """sft, step 40, where an earlier stage made it, or the path."""
    folder = Path(path)
    step, run = folder.parent.name.removeprefix("step-"), folder.parents[2] if len(folder.parts) > 3 else None
    is_export = folder.name == EXPORT and folder.parent.parent.name == CHECKPOINTS and step.isdecimal()
    if not is_export or run is None:
        return str(shown(folder)) if folder.is_absolute() else path
    names = {stage.place: stage.name for stage in earlier}
    return f"{names.get(str(run), shown(run))}, step {step}"


def _trained(number: int, stage: StageRecord, chain: Path, earlier: Sequence[StageStory]) -> StageStory:
    run = found_place(stage, chain)
    if not (run / RECIPE).is_file():
        return _story(number, stage, NOT_STARTED)
    status = read_status(run)
    state = NOT_STARTED if status is None else state_of(run, status)
    model, known = _facts(run, tuple(stamp(run / name) for name in (RECIPE, METRICS, JOURNAL)))
    cause = cause_of(run) if state == "failed" else None
    words = model_words(model, earlier)
    return _story(number, stage, state, place=str(run), cause=cause, began_with=words, **known)


@functools.lru_cache(maxsize=MOST_KEPT)
def _facts(run: Path, stamps: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The path of the model that a run began with, and what its files say. `stamps` change with them."""
    recipe = read_yaml(read_text(run / RECIPE))
    metrics = read_metrics(run / METRICS)
    journal = find_journal(run / JOURNAL)
    spent = time_of({} if journal is None else read_usage(journal), metrics.steps)
    steps = int(metrics.steps[-1]["step"]) if metrics.steps else 0
    before, after = base_and_last(metrics)
    tokens = tokens_of(journal)
    return recipe["model"]["path"], {
        "ended_with": f"{recipe['name']}, step {steps}" if steps else None,
        "steps": steps,
        "num_steps": recipe.get("trainer", {}).get("num_steps"),
        "before": None if before is None else flat(before),
        "after": None if after is None else flat(after),
        "changes": {} if journal is None or after is None else changes(journal, int(after["step"])),
        "heldout_loss_before": _first(metrics.steps, "heldout_loss_at_start"),
        "heldout_loss_after": _first(metrics.steps[::-1], "heldout_loss"),
        "curve": [_point(row) for row in metrics.evaluations if is_number(row.get("greedy_accuracy"))],
        "wall_seconds": spent.wall_seconds,
        "cpu_hours": spent.cpu_hours,
        # The tokens of rows are counted as those that a server samples.
        "tokens_generated": 0 if recipe.get("stage") in OF_STAGES else tokens[GENERATED],
        "tokens_trained": tokens.get(TRAINED, 0),
    }


def _story(number: int, stage: StageRecord, state: str, **known: Any) -> StageStory:
    unknown: dict[str, Any] = dict.fromkeys(StageStory.model_fields)
    unknown |= {"changes": {}, "curve": []}
    told = {"number": number, "name": stage.name, "kind": stage.kind, "place": stage.place, "state": state}
    return StageStory.model_validate(unknown | told | known)


def changes(journal: JournalReader, version: int) -> dict[str, Difference]:
    """Held-out scores of `version` - those before training, paired over tasks."""
    first, second = read_answers(journal, 0, HELDOUT), read_answers(journal, version, HELDOUT)
    found: dict[str, Difference] = {}
    for measure, scores_of in (("greedy", greedy_scores), ("avg", sampled_scores)):
        scores: list[Scores] = []
        for answers in (first, second):
            by_task: dict[str, list[Any]] = {}
            for answer in answers:
                by_task.setdefault(answer.task_id, []).append(answer)
            scores.append(scores_of(by_task))
        shared = common(scores)
        if shared.tasks:
            found[measure] = paired_difference(*(list(map(float, each)) for each in shared.scores))
    return found


def _point(row: Row) -> list[float]:
    value = float(row["greedy_accuracy"])
    return [row["step"], value, float(row.get("greedy_low") or value), float(row.get("greedy_high") or value)]


def _first(steps: Sequence[Row], name: str) -> float | None:
    return next((row[name] for row in steps if is_number(row.get(name))), None)


def found_place(stage: StageRecord, chain: Path) -> Path:
    """The run folder of a stage: where it was, or beside a chain that was moved with its runs."""
    run = Path(stage.place)
    beside = chain.absolute().parent / run.name
    return beside if not run.exists() and (beside / RECIPE).is_file() else run


def _remarks(stages: Sequence[StageStory]) -> list[str]:
    rows = [row for stage in stages for row in (stage.before, stage.after) if row is not None]
    asked = {name: {row.get(name) for row in rows if row.get(name) is not None} for name in SETTINGS}
    differing = [name for name, values in asked.items() if len(values) > 1]
    if not differing:
        return []
    words = "; ".join(f"{name} {', '.join(map(str, sorted(asked[name], key=str)))}" for name in differing)
    return [f"THE STAGES EVALUATED DIFFERENTLY, so their numbers do not compare one to one: {words}."]
