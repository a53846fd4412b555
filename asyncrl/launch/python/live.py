"""Runs in a notebook: rows as a table, and the live cell of a run."""

import html
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asyncrl.errors import InputError, did_you_mean
from asyncrl.observe.terminal.table import duration
from asyncrl.readers.status import CurrentRun
from asyncrl.run.metrics_file import Metrics, Row

NUM_SHOWN = 20


class Table(list[dict[str, Any]]):
    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(dict(row) for row in rows)

    @property
    def columns(self) -> list[str]:
        """All names, in the order in which rows bring them."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """The values of a column; None where a row has none. Raises InputError where no row has it."""
        if self and not any(name in row for row in self):
            near = did_you_mean(str(name), self.columns, f" They have {', '.join(self.columns)}.")
            raise InputError(f"The rows have no column {name}.{near}")
        return [row.get(name) for row in self]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        lines = "".join(self._line(row) for row in self[-NUM_SHOWN:])
        more = f"<p>the last {NUM_SHOWN} of {len(self)} rows</p>" if len(self) > NUM_SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>{more}"

    def _line(self, row: Mapping[str, Any]) -> str:
        return "<tr>" + "".join(f"<td>{_shown(row.get(name))}</td>" for name in self.columns) + "</tr>"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else html.escape(str(value))


WIDTH, HEIGHT, MARGIN = 560, 160, 24
SHOWN_COLUMNS = (
    *("step", "reward_mean", "loss", "response_tokens_mean", "staleness_mean", "mismatch_kl"),
    "step_seconds",
)
NUM_STEPS = 8
REWARD, HELDOUT = "#2563eb", "#16a34a"


def is_notebook() -> bool:
    """Whether output is shown in a cell that can be replaced."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")


class LiveCell:
    """The part of a cell's output that is replaced."""

    def __init__(self) -> None:
        from IPython import display

        self._html: Callable[[str], Any] = display.HTML
        self._handle: Any = display.display(self._html(""), display_id=True)  # type: ignore[no-untyped-call]
        self._last = ""

    def show(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self._handle.update(self._html(text))


def live_html(run: CurrentRun, metrics: Metrics) -> str:
    left = "" if run.seconds_left is None else f", {duration(run.seconds_left)} left"
    head = f"<b>{html.escape(run.folder)}</b>: {html.escape(run.state)}, "
    head += f"step {run.step} of {run.total_steps}{left}"
    alarms = "".join(f"<br>{html.escape(told.text)}" for told in run.alarms if told.is_on)
    rows = [{name: row[name] for name in SHOWN_COLUMNS if name in row} for row in metrics.steps[-NUM_STEPS:]]
    table = Table(rows)._repr_html_() if rows else ""
    return f"<div>{head}{alarms}</div>{_curve(metrics, run.total_steps)}{table}"


def _curve(metrics: Metrics, total_steps: int) -> str:
    """Mean reward per step and held-out accuracy, both within 0 and 1, over the steps of the run."""
    reward = _points(metrics.steps, "reward_mean", total_steps)
    heldout = _points(metrics.evaluations, "greedy_accuracy", total_steps)
    lines = "".join(
        f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(points)}"/>'
        for points, color in ((reward, REWARD), (heldout, HELDOUT))
        if points
    )
    if not lines:
        return ""
    bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN
    axes = f'<path d="M{MARGIN} {MARGIN}V{bottom}H{right}" fill="none" stroke="#888"/>'
    words = "".join(
        f'<text x="{x}" y="{y}" font-size="11" fill="{color}">{text}</text>'
        for x, y, color, text in (
            (4, MARGIN + 4, "#888", "1"),
            (4, bottom, "#888", "0"),
            (right - 8, HEIGHT - 8, "#888", total_steps),
            (MARGIN + 8, 14, REWARD, "reward"),
            (MARGIN + 60, 14, HELDOUT, "held-out accuracy"),
        )
    )
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{axes}{lines}{words}</svg>'


def _points(rows: Sequence[Row], name: str, total_steps: int) -> list[str]:
    known: list[tuple[int, Any]] = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    places = [(step / max(1, total_steps), 1 - min(1.0, max(0.0, value))) for step, value in known]
    return [f"{MARGIN + width * right:.1f},{MARGIN + height * down:.1f}" for right, down in places]
