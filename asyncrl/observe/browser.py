"""The data behind the page of trajectories: the run, its groups, one group with each token's text.

Reads the run folder on every call, so the page follows a live run.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, cast

import yaml

from asyncrl.errors import InputError
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.rows import GroupColumns, GroupSummary, SegmentRow, TrajectoryColumns, TrajectoryRow
from asyncrl.model.source import find_source
from asyncrl.observe.metrics import read_metrics
from asyncrl.observe.summary import JOURNAL_FILE, METRICS_FILE, RECIPE_FILE
from asyncrl.observe.token_text import TokenTexts
from asyncrl.recipe import Model


class Overview(TypedDict):
    name: str
    fates: dict[str, int]
    """Groups by fate."""
    steps: list[int] | None
    """The first and the last step whose batch was taken."""
    greedy_accuracy: float | None
    """Of the last evaluation."""
    evaluated_step: int | None


class PageSegment(TypedDict):
    """Neighbouring chunks of one version."""

    version: int
    is_continued: bool
    staleness: int | None
    """In versions, at the step that trained it first; None before that."""
    tokens: list[list[Any]]
    """[text, token, log-prob or None] of each."""


class PageTrajectory(TrajectoryColumns):
    num_prompt_tokens: int
    segments: list[PageSegment]


class PageGroup(GroupColumns):
    trajectories: list[PageTrajectory]


class Browser:
    """Raises InputError when the folder is no run folder."""

    def __init__(self, run_folder: Path) -> None:
        recipe_path = run_folder / RECIPE_FILE
        if not recipe_path.is_file():
            raise InputError(
                f"{run_folder} holds no {RECIPE_FILE}, so it is not a run folder. Runs are in runs/NAME."
            )
        recipe = yaml.safe_load(recipe_path.read_text(encoding="utf-8"))
        self._name = str(recipe["name"])
        self._texts = TokenTexts(_tokenizer_folder(run_folder, recipe["model"]))
        self._journal = JournalReader(run_folder / JOURNAL_FILE)
        self._metrics_path = run_folder / METRICS_FILE
        # Raise here what cannot be read, instead of serving an empty page.
        self.overview()

    def overview(self) -> Overview:
        """Name, groups by fate, range of steps, the last evaluation."""
        steps = self._journal.step_range()
        evaluations = read_metrics(self._metrics_path).evaluations
        last = evaluations[-1] if evaluations else {}
        return {
            "name": self._name,
            "fates": self._journal.fates(),
            "steps": list(steps) if steps else None,
            "greedy_accuracy": last.get("greedy_accuracy"),
            "evaluated_step": last.get("step"),
        }

    def groups(self, wanted: GroupFilter) -> list[GroupSummary]:
        return self._journal.groups(wanted)

    def group(self, group_id: int) -> PageGroup | None:
        """A group whose segments hold [text, token, log-prob] per token and their staleness at training."""
        group = self._journal.group(group_id)
        if group is None:
            return None
        trajectories = [self._trajectory(t, group["step"]) for t in group["trajectories"]]
        return cast(PageGroup, {**group, "trajectories": trajectories})

    def _trajectory(self, trajectory: TrajectoryRow, step: int | None) -> PageTrajectory:
        response = [token for segment in trajectory["segments"] for token in segment["tokens"]]
        texts = iter(self._texts(trajectory["prompt_tokens"], response))
        segments = [
            PageSegment(
                version=segment["version"],
                is_continued=segment["is_continued"],
                # Step n trains version n - 1 on its batch.
                staleness=None if step is None else step - 1 - segment["version"],
                tokens=_tokens(texts, segment),
            )
            for segment in _joined(trajectory["segments"])
        ]
        kept = {name: value for name, value in trajectory.items() if name not in ("prompt_tokens", "text")}
        row = {**kept, "num_prompt_tokens": len(trajectory["prompt_tokens"]), "segments": segments}
        return cast(PageTrajectory, row)


def _joined(segments: list[SegmentRow]) -> list[SegmentRow]:
    """Neighbours of one version as one segment: the journal has a row per chunk that was streamed."""
    joined: list[SegmentRow] = []
    for segment in segments:
        if joined and joined[-1]["version"] == segment["version"]:
            joined[-1]["tokens"] += segment["tokens"]
            joined[-1]["logprobs"] += segment["logprobs"]
        else:
            joined.append({**segment, "tokens": [*segment["tokens"]], "logprobs": [*segment["logprobs"]]})
    return joined


def _tokens(texts: Iterator[str], segment: SegmentRow) -> list[list[Any]]:
    return [
        # A log-prob may be infinite or NaN, which JSON does not have.
        [next(texts), token, round(logprob, 5) if math.isfinite(logprob) else None]
        for token, logprob in zip(segment["tokens"], segment["logprobs"], strict=True)
    ]


def _tokenizer_folder(run_folder: Path, section: dict[str, Any]) -> Path:
    """The base model's folder; an exported checkpoint's if the run was copied without the model."""
    source = find_source(Model(path=section["path"], revision=section.get("revision")))
    model = Path(section["path"]) if source is None else source.folder
    exported = sorted((run_folder / "checkpoints").glob("step-*/hf/tokenizer.json"))
    return exported[-1].parent if exported and not model.is_dir() else model
