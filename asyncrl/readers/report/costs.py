"""Costs of a run and its responses over the steps."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from asyncrl.journal.responses import SampledTokens
from asyncrl.journal.starts import RUN, Usage
from asyncrl.model.flops import generation_flops
from asyncrl.model.shape import ModelShape
from asyncrl.observe.terminal.table import Table
from asyncrl.readers.report.schema import Flops, ProcessUse, RunReport, StepResponses, Time
from asyncrl.run.metrics_file import Row

HOUR = 3600.0
TIMED_PARTS = {
    "train_seconds": "training",
    "wait_seconds": "waiting for rollouts",
    "publish_seconds": "publishing weights",
    "checkpoint_seconds": "saving checkpoints",
    "drain_seconds": "draining servers",
}
"""Parts of a trainer step in metrics.jsonl, with their display names."""


def flops_of(shape: ModelShape | None, sampled: SampledTokens | None, steps: Sequence[Row]) -> Flops:
    """`shape` is None where the model is not known; then only what the trainer counted is there."""
    generated = None
    if shape is not None and sampled is not None:
        generated = generation_flops(
            shape,
            num_prompt_tokens=sampled.num_prompt_tokens,
            num_sampled_tokens=sampled.num_sampled_tokens,
            num_fed_tokens=sampled.num_fed_tokens,
            num_looks=sampled.num_looks,
        )
    counted = [row["model_flops"] for row in steps if is_number(row.get("model_flops"))]
    trained = math.fsum(counted) if counted and len(counted) == len(steps) else None
    return Flops(generated=generated, trained=trained)


def time_of(starts: Mapping[float, Sequence[Usage]], steps: Sequence[Row]) -> Time:
    """`starts` as `read_usage`; without any, wall time and hours are not known."""
    rows = [use for uses in starts.values() for use in uses]
    whole = [use for use in rows if use.name == RUN]
    processes = _processes(rows)
    # The first tenth fills the queue and warms caches up: idle shares are of the steady state.
    steady = steps[len(steps) // 10 :]
    return Time(
        wall_seconds=sum(use.wall_seconds for use in whole) if whole else None,
        step_seconds=math.fsum(map(_step_seconds, steps)),
        step_shares=_step_shares(steps),
        cpu_hours=_sum([process.cpu_hours for process in processes]) if processes else None,
        gpu_hours=sum(use.wall_seconds * use.num_gpus for use in whole) / HOUR if whole else None,
        trainer_idle_share=_weighted_mean(steady, "trainer_idle_share"),
        rollout_idle_share=_weighted_mean(steady, "rollout_idle_share"),
        processes=processes,
    )


def _processes(rows: Sequence[Usage]) -> list[ProcessUse]:
    names = dict.fromkeys(use.name for use in rows if use.name != RUN)
    found = []
    for name in names:
        own = [use for use in rows if use.name == name]
        seconds = _sum([use.cpu_seconds for use in own])
        found.append(
            ProcessUse(
                name=name,
                wall_hours=sum(use.wall_seconds for use in own) / HOUR,
                cpu_hours=None if seconds is None else seconds / HOUR,
                num_gpus=max(use.num_gpus for use in own),
                gpu_hours=sum(use.wall_seconds * use.num_gpus for use in own) / HOUR,
                num_restarts=sum(use.num_restarts for use in own),
            )
        )
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    """None where a part is not known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _step_shares(steps: Sequence[Row]) -> dict[str, float]:
    whole = math.fsum(map(_step_seconds, steps))
    if not whole:
        return {}
    parts = [_parts(row) for row in steps]
    shares = {words: sum(part[name] for part in parts) / whole for name, words in TIMED_PARTS.items()}
    # Parts are measured one by one and the step as a whole: show what lies between, do not spread it.
    return {**shares, "the rest": max(0.0, 1.0 - sum(shares.values()))}


def _parts(row: Row) -> dict[str, float]:
    """Seconds of each part of a step. The first wait is cut to the step: it began while servers started."""
    parts = {name: row.get(name) or 0.0 for name in TIMED_PARTS}
    others = sum(parts.values()) - parts["wait_seconds"]
    return parts | {"wait_seconds": min(parts["wait_seconds"], max(0.0, _step_seconds(row) - others))}


def _step_seconds(row: Row) -> float:
    return float(row["step_seconds"]) if is_number(row.get("step_seconds")) else 0.0


def _weighted_mean(steps: Sequence[Row], name: str) -> float | None:
    """Mean of a share over steps, weighted by their duration; None if no step measured it."""
    pairs = [(row[name], _step_seconds(row)) for row in steps if is_number(row.get(name))]
    weight = sum(seconds for _, seconds in pairs)
    return sum(share * seconds for share, seconds in pairs) / weight if weight else None


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_BY_WORD = "reflection_words_mean_by_word_"
_COLUMNS = {
    "correct_tokens_mean": ("response_tokens_mean_by_outcome_correct", "tokens, correct responses"),
    "wrong_tokens_mean": ("response_tokens_mean_by_outcome_wrong", "tokens, wrong responses"),
    "reflection_words_mean": ("reflection_words_mean", "reflection words per response"),
    "reflection_words_share": ("reflection_words_share", "share of responses with one"),
    "correct_reflection_words_mean": (
        "reflection_words_mean_by_outcome_correct",
        "reflection words, correct responses",
    ),
    "wrong_reflection_words_mean": (
        "reflection_words_mean_by_outcome_wrong",
        "reflection words, wrong responses",
    ),
}
"""Field -> column of a step, title of a row."""


def step_responses(steps: Sequence[Row]) -> list[StepResponses]:
    """All steps, in order; what one did not measure is null."""
    return [
        StepResponses(
            step=int(row["step"]),
            **{
                field: row[column] if is_number(row.get(column)) else None
                for field, (column, _) in _COLUMNS.items()
            },
            reflection_words_by_word={
                name.removeprefix(_BY_WORD): row[name]
                for name in row
                if name.startswith(_BY_WORD) and is_number(row[name])
            },
        )
        for row in steps
    ]


def responses_table(report: RunReport) -> Table:
    """First value, last value and mean over the steps."""
    rows = []
    for field, (_, title) in _COLUMNS.items():
        values = [value for each in report.responses if (value := getattr(each, field)) is not None]
        if values:
            mean = sum(values) / len(values)
            rows.append(
                (title, *(f"{value:.3g}" for value in (values[0], values[-1], mean)), str(len(values)))
            )
    words = report.recipe.get("view", {}).get("reflection_words") or []
    note = f"Steps are those that have a value, of {len(report.responses)}."
    if words:
        note += f" Reflection words (view.reflection_words): {', '.join(words)}."
    return Table("Responses", ("", "first step", "last step", "mean", "steps"), rows, note)


def responses_csv(report: RunReport) -> str:
    """A row per step; an empty value is one that the step did not measure."""
    words = list(dict.fromkeys(word for each in report.responses for word in each.reflection_words_by_word))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *_COLUMNS, *(f"reflection_word: {word}" for word in words)])
    for each in report.responses:
        by_word = each.reflection_words_by_word
        values = [*(getattr(each, field) for field in _COLUMNS), *(by_word.get(word) for word in words)]
        table.writerow([each.step, *("" if value is None else value for value in values)])
    return text.getvalue()
