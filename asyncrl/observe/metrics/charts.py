"""Columns of metrics.jsonl as readers see them: the charts that draw them, and their names in trackers.

catalog.md is the home of each column. The charts are one table for the live page, the report, the picture to
share and several runs; those of a stage that learns rows are in ROWS. In every tracker and in Prometheus a
column is called group/name; one that the catalog does not know keeps its name, in the group `other`.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from asyncrl.run.metrics_file import Metrics
from asyncrl.system.words import as_percent
from verifiers.verdict import Outcome

MUTED = "#6b7280"
# Okabe-Ito: distinct with every kind of color vision.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#aa5a9c"
TICKS: Mapping[str, Callable[[float], str]] = {
    "number": lambda value: f"{value:.2g}",
    "tokens": lambda value: f"{value:.0f}",
    "thousands": lambda value: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}",
    "versions": lambda value: f"{value:g}",
    "share": as_percent,
    "tiny": lambda value: f"{value:.0e}",
}
"""Unit -> a value in words, at an axis."""
BOUNDS = {"greedy_accuracy": ("greedy_low", "greedy_high")}
"""Column of an evaluation -> the ends of its interval."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    lines: Sequence[tuple[str, str, str]]
    """Column of the steps, label, colour; the first is the one that several runs are compared by."""
    unit: str = "number"
    """A key of TICKS."""
    heldout: str | None = None
    """Column of the held-out evaluations, drawn as points."""
    is_log: bool = False
    family: str = ""
    """Beginning of columns: the page has a line for each, and no chart without one."""
    is_in_report: bool = True
    is_compared: bool = False
    """Whether a report of several runs has it."""


ACCURACY = Chart("Accuracy", [("correct_mean", "training samples", ORANGE)], "share", "greedy_accuracy")
REWARD = Chart("Reward", [("reward_mean", "training samples", ORANGE)], is_compared=True)
LENGTH = Chart(
    "Response length (tokens)",
    [("response_tokens_mean", "training samples", PURPLE)],
    *("tokens", "response_tokens_mean"),
    is_compared=True,
)
THROUGHPUT = Chart(
    "Throughput (tokens per second)",
    [("tokens_per_second", "trainer", ORANGE), ("rollout_tokens_per_second", "rollout", BLUE)],
    "thousands",
)
GRADIENT = Chart("Gradient norm", [("grad_norm", "before clipping", GREEN)], is_in_report=False)
CHARTS = (
    ACCURACY,
    REWARD,
    LENGTH,
    Chart(
        "Response length by outcome (tokens)",
        [
            ("response_tokens_mean_by_outcome_correct", "correct", GREEN),
            ("response_tokens_mean_by_outcome_wrong", "wrong", ORANGE),
        ],
        "tokens",
        family="response_tokens_mean_by_outcome_",
    ),
    Chart(
        "Reflection words (per response)",
        [
            ("reflection_words_mean_by_outcome_correct", "correct", GREEN),
            ("reflection_words_mean_by_outcome_wrong", "wrong", ORANGE),
        ],
        family="reflection_words_mean_by_outcome_",
    ),
    Chart("Cut at the length limit", [("cut_share", "share", PURPLE)], "share"),
    Chart("Entropy (nats per token)", [("entropy", "the trainer's", GREEN)]),
    Chart(
        "Staleness (versions)",
        [("staleness_mean", "mean", BLUE), ("staleness_max", "oldest token", MUTED)],
        "versions",
        is_compared=True,
    ),
    Chart(
        "Behavior against trainer, KL (nats per token)",
        [("mismatch_kl", "lag 0: engines alone", BLUE), ("staleness_kl", "lag ≥ 1: with staleness", ORANGE)],
        "tiny",
        is_log=True,
        is_compared=True,
    ),
    THROUGHPUT,
    Chart(
        "Idle", [("trainer_idle_share", "trainer", ORANGE), ("rollout_idle_share", "rollout", BLUE)], "share"
    ),
    Chart("Weights at their cap", [("capped_share", "share of the tokens", GREEN)], "share"),
    GRADIENT,
    Chart(
        "Learning rate",
        [("learning_rate", "policy", BLUE), ("critic_learning_rate", "critic", ORANGE)],
        is_in_report=False,
    ),
)
LOSS = Chart("Loss (nats)", [("loss", "training rows", ORANGE), ("heldout_loss", "held-out rows", BLUE)])
ROWS = (
    LOSS,
    Chart(
        "Pairs whose chosen response gained",
        [("dpo_accuracy", "training pairs", ORANGE), ("heldout_dpo_accuracy", "held-out pairs", BLUE)],
        "share",
    ),
    Chart("Accuracy of answers", [], "share", "greedy_accuracy"),
    LENGTH,
    GRADIENT,
    THROUGHPUT,
)


def _family(title: str, family: str, unit: str = "number") -> Chart:
    return Chart(title, (), unit, family=family, is_in_report=False)


FAMILIES = (
    _family("Reverse KL to the teacher, per token", "teacher_kl"),
    _family("Forward KL over the teacher's likeliest tokens", "teacher_forward_kl"),
    _family("Perplexity of training rows", "perplexity"),
    _family("Loss on held-out rows", "heldout_loss"),
    _family("Pairs whose chosen response gained", "dpo_accuracy", "share"),
    _family("Held-out pairs whose chosen response gained", "heldout_dpo_accuracy", "share"),
    _family("Accuracy of training samples, by source", "correct_mean_by_source_", "share"),
    _family("Use of tools, by source", "tool_use_share_by_source_", "share"),
    _family("Score of training samples, by part or role", "score_mean_by_part_"),
    _family("Reflection words per response, by word", "reflection_words_mean_by_word_"),
    _family("Share of the batch's groups, by source", "groups_share_by_source_", "share"),
    _family("Groups stopped after their pilot", "pilots_stopped_share", "share"),
)
"""Charts that the page has of some runs, beside those of CHARTS."""


def learns_rows(metrics: Metrics) -> bool:
    """Whether the run's stage learns rows."""
    return any("perplexity" in row or "dpo_accuracy" in row for row in metrics.steps[:1])


def report_charts(metrics: Metrics) -> tuple[Chart, ...]:
    return ROWS if learns_rows(metrics) else tuple(chart for chart in CHARTS if chart.is_in_report)


def evaluated_columns() -> tuple[str, ...]:
    """Columns of evaluations that charts show, intervals included."""
    shown = dict.fromkeys(chart.heldout for chart in CHARTS if chart.heldout is not None)
    return tuple(name for column in shown for name in (column, *BOUNDS.get(column, ())))


def page_charts() -> list[dict[str, Any]]:
    """The charts of the live page, as its script reads them."""
    return [
        {
            "title": chart.title,
            "unit": chart.unit,
            "family": chart.family,
            "lines": [{"column": column, "name": name} for column, name, _ in chart.lines],
            "heldout": chart.heldout,
            "bounds": BOUNDS.get(chart.heldout or ""),
        }
        for chart in (*CHARTS, *FAMILIES)
    ]


NO_VALUES = ("kind", "time_seconds", "step")
"""Columns that say where a value belongs."""
EVALUATIONS = "eval"
"""Group of what evaluations have."""
BY_VERIFIER = "outcomes_by_verifier_"
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that one tracker or another refuses."""


@functools.cache
def groups() -> dict[str, tuple[str, ...]]:
    """Group -> its columns, in the catalog's order; a family ends in `*`."""
    page = (resources.files("asyncrl.observe.metrics") / "catalog.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## [^\n]*: `(\w+)/`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    cells = {group: re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE) for group, text in sections}
    return {
        group: tuple(column for cell in found for column in re.findall(r"`(.+?)`", cell))
        for group, found in cells.items()
    }


def values_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Name -> value of all numbers in a step, evaluation or benchmark. Text, lists and null have none."""
    match row["kind"]:
        case "step":
            name_of = step_name
        case "eval":
            name_of = _evaluation_name
        case _:
            name_of = f"benchmark/{_plain(str(row['benchmark']))}/{{}}".format
    return {
        name_of(column): float(value)
        for column, value in row.items()
        if column not in NO_VALUES and isinstance(value, (int, float))
    }


@functools.cache
def _known() -> tuple[dict[str, str], dict[str, str]]:
    """Column of a step -> its name. Beginning of a family's columns -> that of their names, longest first."""
    names = {
        column: f"{group}/{column.removeprefix(f'{group}_')}"
        for group, columns in groups().items()
        if group != EVALUATIONS
        for column in columns
    }
    families = sorted((column for column in names if column.endswith("_*")), key=len, reverse=True)
    beginnings = {column[:-1]: f"{names.pop(column)[:-2]}/" for column in families}
    return names, beginnings


def step_name(column: str) -> str:
    """The name of a step's column."""
    names, beginnings = _known()
    if column in names:
        return names[column]
    for beginning, name in beginnings.items():
        if column.startswith(beginning):
            rest = column.removeprefix(beginning)
            return name + (_verifier_and_outcome(rest) if beginning == BY_VERIFIER else _plain(rest))
    return f"other/{_plain(column)}"


def _evaluation_name(column: str) -> str:
    return f"{EVALUATIONS}/{_plain(column)}"


def _verifier_and_outcome(text: str) -> str:
    """ "NAME_OUTCOME", where both may have underscores, as "NAME/OUTCOME"."""
    outcome = next((outcome.value for outcome in Outcome if text.endswith(f"_{outcome.value}")), None)
    return _plain(text) if outcome is None else f"{_plain(text.removesuffix(f'_{outcome}'))}/{outcome}"


def _plain(text: str) -> str:
    """A name that all trackers take, such as "sevens.py-Sevens" for "./sevens.py:Sevens"."""
    return _REFUSED.sub("-", text).strip("-.") or "-"
