"""The data behind the page of trajectories: the run, its groups, one group with each token's text.

Reads the run folder on every call, so the page follows a live run.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from asyncrl.errors import InputError
from asyncrl.journal.reader import GroupFilter, Journal, Row
from asyncrl.observe.metrics import read_metrics
from asyncrl.observe.summary import JOURNAL_FILE, METRICS_FILE, RECIPE_FILE
from asyncrl.observe.token_text import TokenTexts


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
        self._texts = TokenTexts(_tokenizer_folder(run_folder, Path(recipe["model"]["path"])))
        self._journal = Journal(run_folder / JOURNAL_FILE)
        self._metrics_path = run_folder / METRICS_FILE
        # Raise here what cannot be read, instead of serving an empty page.
        self.overview()

    def overview(self) -> Row:
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

    def groups(self, wanted: GroupFilter) -> list[Row]:
        return self._journal.groups(wanted)

    def group(self, group_id: int) -> Row | None:
        """A group whose segments hold [text, token, log-prob] per token and their staleness at training."""
        group = self._journal.group(group_id)
        if group is not None:
            group["trajectories"] = [self._trajectory(t, group["step"]) for t in group["trajectories"]]
        return group

    def _trajectory(self, trajectory: Row, step: int | None) -> Row:
        response = [token for segment in trajectory["segments"] for token in segment["tokens"]]
        texts = iter(self._texts(trajectory["prompt_tokens"], response))
        segments = [
            {
                "version": segment["version"],
                "is_continued": segment["is_continued"],
                # Step n trains version n - 1 on its batch.
                "staleness": None if step is None else step - 1 - segment["version"],
                "tokens": _tokens(texts, segment),
            }
            for segment in _joined(trajectory["segments"])
        ]
        kept = {name: value for name, value in trajectory.items() if name not in ("prompt_tokens", "text")}
        return {**kept, "num_prompt_tokens": len(trajectory["prompt_tokens"]), "segments": segments}


def _joined(segments: list[Row]) -> list[Row]:
    """Neighbours of one version as one segment: the journal has a row per chunk that was streamed."""
    joined: list[Row] = []
    for segment in segments:
        if joined and joined[-1]["version"] == segment["version"]:
            last = joined[-1]
            joined[-1] = {**last, **{name: last[name] + segment[name] for name in ("tokens", "logprobs")}}
        else:
            joined.append(segment)
    return joined


def _tokens(texts: Iterator[str], segment: Row) -> list[list[Any]]:
    return [
        # A log-prob may be infinite or NaN, which JSON does not have.
        [next(texts), token, round(logprob, 5) if math.isfinite(logprob) else None]
        for token, logprob in zip(segment["tokens"], segment["logprobs"], strict=True)
    ]


def _tokenizer_folder(run_folder: Path, model: Path) -> Path:
    """The base model's folder; an exported checkpoint's if the run was copied without the model."""
    exported = sorted((run_folder / "checkpoints").glob("step-*/hf/tokenizer.json"))
    return exported[-1].parent if exported and not model.is_dir() else model
