"""Tables, figures and verdicts, all made from the rows: Markdown for the docs, SVGs, a JSON for the catalog.

What was not run is said to be so. A comparison has a verdict only with all its seeds and tuned rates.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.algorithms.catalog import NOT_MEASURED
from tests.benchmarks.algorithms.arms import ARMS
from tests.benchmarks.algorithms.plan import (
    COMPARISONS,
    NUM_UPDATES,
    RATES,
    SEEDS,
    TUNING_LAG,
    Comparison,
    Place,
    Plan,
    Row,
    make_plan,
    places,
    tuning_cells,
)
from tests.benchmarks.kept import markdown as table_of
from tests.benchmarks.kept import panels
from tests.benchmarks.paired import holm, interval, sign_flip_p

SIGNIFICANT = 0.05
NOT_RUN = "not run"
DEFAULT = "truncated"
EFFECT_SIZES = (
    "The tables below are effect sizes: means with 95% intervals (Student's t) of each line alone, paired by "
    "seed where they are differences, in points. They are not tested and not corrected for their number: an "
    "interval without 0 is a reason to measure again, not a finding."
)
FOLDER = Path(__file__).parent
TITLES = {
    "staleness": "Staleness",
    "mismatch": "Mismatch: noise on the weights that roll out, over each tensor's root mean square",
}


@dataclass(frozen=True)
class Outcome:
    """A comparison with the pairs that there are."""

    comparison: Comparison
    differences: list[float]
    """Areas of the arm less those of the reference, by seed."""
    p: float
    """Without correction; 1 where it has no verdict, so that it stays in the family."""
    corrected_p: float
    is_complete: bool
    """All seeds, at tuned rates."""

    def verdict(self) -> str:
        if not self.is_complete:
            return NOT_MEASURED
        mean, width = (100 * value for value in interval(self.differences))
        where = f"`{self.comparison.reference}` at lag {self.comparison.lag}"
        pairs = f"{len(self.differences)} pairs, p = {self.corrected_p:.2g}"
        if self.corrected_p >= SIGNIFICANT:
            return f"not told apart from {where}: {mean:+.1f} ± {width:.1f} points ({pairs})"
        side = "above" if mean > 0 else "below"
        return f"{side} {where}: {mean:+.1f} ± {width:.1f} points ({pairs})"


def current(rows: Sequence[Row]) -> list[Row]:
    """Rows of the plan as it is now: those at a rate that tuning did not choose are left out."""
    planned = set(make_plan(rows).cells)
    return [row for row in rows if row.cell in planned]


def areas_of(rows: Sequence[Row], plan: Plan) -> dict[Place, dict[int, float]]:
    """Place -> seed -> area, of the plan's cells that there are."""
    found = {row.cell: row.area() for row in rows}
    areas: dict[Place, dict[int, float]] = {}
    for cell in plan.cells:
        if cell.axis != "tuning" and cell in found:
            areas.setdefault(cell.place, {})[cell.seed] = found[cell]
    return areas


def outcomes(rows: Sequence[Row]) -> list[Outcome]:
    """One of each comparison, in their order; Holm's correction is over all of them, run or not."""
    plan = make_plan(rows)
    areas = areas_of(rows, plan)
    found = []
    for c in COMPARISONS:
        one, other = (areas.get((c.axis, name, c.lag, c.noise), {}) for name in (c.arm, c.reference))
        differences = [one[seed] - other[seed] for seed in SEEDS if seed in one and seed in other]
        is_tuned = plan.is_tuned[c.arm] and plan.is_tuned[c.reference]
        found.append((c, differences, is_tuned and len(differences) == len(SEEDS)))
    ps = [sign_flip_p(differences) if complete else 1.0 for _, differences, complete in found]
    return [
        Outcome(c, differences, p, corrected, complete)
        for (c, differences, complete), p, corrected in zip(found, ps, holm(ps), strict=True)
    ]


def comparison_table(found: Sequence[Outcome]) -> str:
    lines = []
    for outcome in found:
        c = outcome.comparison
        noise = f", noise {c.noise:g}" if c.noise else ""
        difference = _points(outcome.differences, sign="+") if outcome.differences else NOT_RUN
        p = f"{outcome.p:.2g}, {outcome.corrected_p:.2g}" if outcome.is_complete else ""
        pairs = f"{len(outcome.differences)} of {len(SEEDS)}"
        verdict = outcome.verdict() if p else NOT_MEASURED
        lines.append(
            (f"{c.axis}{noise}", c.lag, f"`{c.arm}` - `{c.reference}`", pairs, difference, p, verdict)
        )
    heads = ("axis", "lag", "comparison", "pairs", "difference in area, points", "p, Holm", "verdict")
    return table_of(heads, lines)


def axis_table(axis: str, rows: Sequence[Row]) -> str:
    """Markdown: mean area and its interval over the seeds that there are, the seeds' own values, and the
    paired difference to the default."""
    plan = make_plan(rows)
    areas = areas_of(rows, plan)
    last = {row.cell: row.greedy[1] for row in rows}
    heads = ("arm", "lag", "seeds", "area, %", "of each seed", f"less `{DEFAULT}`", "greedy after, %", "rate")
    lines = []
    wanted = sorted((place for place in places() if place[0] == axis), key=lambda place: place[2])
    for _, arm, lag, noise in wanted:
        own, default = (areas.get((axis, name, lag, noise), {}) for name in (arm, DEFAULT))
        if not own:
            continue
        cells = [cell for cell in plan.cells if cell.place == (axis, arm, lag, noise) and cell in last]
        each = " ".join(f"{100 * own[seed]:.1f}" for seed in sorted(own))
        pairs = [own[seed] - default[seed] for seed in own if seed in default and arm != DEFAULT]
        ends = _points([last[cell] for cell in cells])
        area, less = _points(list(own.values())), _points(pairs, sign="+") if pairs else ""
        lines.append((f"`{arm}`", lag, len(own), area, each, less, ends, f"{cells[0].rate:g}"))
    num_missing = len(wanted) - len(lines)
    missing = f"\n\nNot run: {num_missing} of {len(wanted)} arms and lags." if num_missing else ""
    return ((table_of(heads, lines) + missing) if lines else missing).strip()


def _points(values: Sequence[float], sign: str = "") -> str:
    mean, width = interval(values)
    spread = "" if math.isnan(width) else f" ± {100 * width:.1f}"
    return f"{100 * mean:{sign}.1f}{spread}"


def markdown(rows: Sequence[Row]) -> str:
    """The whole report, as docs/measurements/ablation.md has it."""
    plan = make_plan(rows)
    count = sum(cell in {row.cell for row in rows} for cell in plan.cells)
    tuned = [name for name in ARMS if plan.is_tuned[name]]
    text = [
        f"{count} of the plan's {len(plan.cells)} cells are run. Learning rates tuned for: "
        f"{', '.join(f'`{name}`' for name in tuned) or 'no arm yet'}.",
        f"**The {len(COMPARISONS)} primary comparisons**",
        comparison_table(outcomes(rows)),
        f"**Learning rates**, in multiples of the recipe's, at lag {TUNING_LAG} on seeds of their own",
        tuning_table(rows),
        EFFECT_SIZES,
    ]
    for axis, title in TITLES.items():
        text += [f"**{title}**", axis_table(axis, rows)]
    return "\n\n".join(text) + "\n"


def verdicts(rows: Sequence[Row]) -> dict[str, str]:
    """Verdict at TUNING_LAG by "key=name" of the term; terms without one are left out."""
    found = {}
    for outcome in outcomes(rows):
        term = ARMS[outcome.comparison.arm].term if _is_of_term(outcome) else None
        if term is not None and outcome.is_complete:
            found[term] = outcome.verdict()
    return found


def _is_of_term(outcome: Outcome) -> bool:
    c = outcome.comparison
    return (c.axis, c.lag) == ("staleness", TUNING_LAG) and c.reference == ARMS[c.arm].reference


def write_verdicts(rows: Sequence[Row], path: Path) -> None:
    path.write_text(json.dumps(verdicts(rows), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def figures_of(rows: Sequence[Row]) -> list[Path]:
    """The figures that `draw` makes: one of each axis that has rows."""
    return [FOLDER / f"{axis}.svg" for axis in TITLES if any(row.axis == axis for row in current(rows))]


def draw(rows: Sequence[Row]) -> list[Path]:
    """Writes `figures_of`: held-out curves by lag, every seed a line, and areas, every seed a point."""
    from matplotlib import colormaps

    made = figures_of(rows)
    for path in made:
        own = sorted((row for row in current(rows) if row.axis == path.stem), key=_order)
        lags = sorted({(row.lag, row.noise) for row in own})
        arms = list(dict.fromkeys(row.arm for row in own))
        colors = dict(zip(arms, colormaps["tab20"].colors, strict=False))
        with panels(path, len(lags) + 1, width=4, height=3.4) as axes:
            for panel, (lag, noise) in zip(axes, lags, strict=False):
                here = [row for row in own if (row.lag, row.noise) == (lag, noise)]
                _draw_curves(panel, here, colors)
                panel.set(title=f"lag {lag}" + (f", noise {noise:g}" if noise else ""), xlabel="version")
            _draw_areas(axes[-1], own, colors)
            axes[0].set(ylabel="held-out accuracy, sampled")
            axes[0].legend(frameon=False, fontsize=7)
    return made


def _order(row: Row) -> tuple[int, int]:
    """The plan's, not that in which cells ended."""
    return places().index(row.cell.place), row.seed


def _draw_curves(panel, rows: Sequence[Row], colors: dict[str, Any]) -> None:
    """Thin lines are seeds, thick ones their means; grey is what the area leaves out."""
    for arm in dict.fromkeys(row.arm for row in rows):
        curves = [row.heldout for row in rows if row.arm == arm]
        for curve in curves:
            panel.plot(*zip(*curve, strict=True), color=colors[arm], linewidth=0.6, alpha=0.5)
        means = [
            statistics.fmean(values) for values in zip(*([y for _, y in c] for c in curves), strict=True)
        ]
        panel.plot([x for x, _ in curves[0]], means, color=colors[arm], linewidth=1.8, label=arm)
    if rows[0].lag:
        panel.axvspan(0, rows[0].lag, color="0.92", zorder=0)
    panel.set(ylim=(0, 1.02), xlim=(0, rows[0].lag + NUM_UPDATES))


def _draw_areas(panel, rows: Sequence[Row], colors: dict[str, Any]) -> None:
    names = list(dict.fromkeys((row.arm, row.lag, row.noise) for row in rows))
    for place, (arm, lag, noise) in enumerate(names):
        values = [row.area() for row in rows if (row.arm, row.lag, row.noise) == (arm, lag, noise)]
        mean, width = interval(values)
        panel.scatter([place] * len(values), values, s=12, color=colors[arm], alpha=0.6)
        error = 0.0 if math.isnan(width) else width
        panel.errorbar([place + 0.2], [mean], yerr=[error], marker="_", capsize=3, color=colors[arm])
    panel.set(title="area, each seed a point", ylim=(0, 1.02))
    panel.set_xticks(range(len(names)), [f"{arm}, {lag}" for arm, lag, _ in names], rotation=90, fontsize=6)


def tuning_table(rows: Sequence[Row]) -> str:
    """Markdown: mean area of each arm at each rate, and how many of its tuning cells there are; arms without
    any are left out."""
    found = {row.cell: row.area() for row in rows}
    lines = []
    for arm in ARMS:
        own = tuning_cells(arm)
        done = sum(cell in found for cell in own)
        if not done:
            continue
        means = []
        for rate in RATES:
            areas = [found[cell] for cell in own if cell.rate == rate and cell in found]
            means.append(_points(areas) if areas else NOT_RUN)
        lines.append((f"`{arm}`", f"{done} of {len(own)}", *means))
    return table_of(["arm", "cells", *(f"rate {rate:g}" for rate in RATES)], lines)
