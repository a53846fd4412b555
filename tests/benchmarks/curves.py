"""Curves of the runs of `make seeds`, and the README's figure of them, which `make pictures` draws."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.kept import panels, read_kept

CURVES = Path(__file__).resolve().with_name("curves.jsonl")
"""A line per recipe and seed."""
SHOWN = {
    "r1_zero_arithmetic_cpu": "sums, 0.6 M parameters",
    "r1_zero_smollm2_cpu": "sums, SmolLM2-135M",
    "r1_zero_grow_cpu": "sums of 2 to 12 columns, 0.19 M",
}
"""Recipes of the figure, and what stands above their panels."""
COLOR, LENGTH_COLOR = "#2f6fde", "#c2571a"


@dataclass(frozen=True)
class Curve:
    """Greedy held-out evaluations of one run of a recipe as shipped."""

    recipe: str
    seed: int
    steps: list[int]
    """[E] versions that were evaluated, 0 the base model."""
    accuracy: list[float]
    """[E]."""
    response_tokens: list[float]
    """[E] means over the held-out tasks."""


def curve_of(recipe: str, seed: int, evaluations: Sequence[dict[str, Any]]) -> Curve:
    """`evaluations` are rows of metrics.jsonl; the last row of a version counts."""
    by_step = {row["step"]: row for row in evaluations}
    rows = [by_step[step] for step in sorted(by_step)]
    return Curve(
        recipe,
        seed,
        [row["step"] for row in rows],
        [round(row["greedy_accuracy"], 4) for row in rows],
        [round(row["response_tokens_mean"], 2) for row in rows],
    )


def read_curves(path: Path = CURVES) -> list[Curve]:
    return read_kept(Curve, path)


def keep(curve: Curve, path: Path = CURVES) -> None:
    """Takes the place of an earlier run of the same recipe and seed."""
    others = [each for each in read_curves(path) if (each.recipe, each.seed) != (curve.recipe, curve.seed)]
    curves = sorted([*others, curve], key=lambda each: (each.recipe, each.seed))
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in curves), encoding="utf-8")


def draw(path: Path, curves: Sequence[Curve]) -> None:
    """Accuracy and length over steps, a panel per recipe. A line is the mean over seeds, its band reaches
    from the lowest to the highest. Raises ValueError where a recipe of SHOWN has no curve or its seeds were
    evaluated at different versions.
    """
    with panels(path, len(SHOWN), width=11 / 3, height=3.1, dpi=110) as axes:
        for panel, (recipe, title) in zip(axes, SHOWN.items(), strict=True):
            own = [curve for curve in curves if curve.recipe == recipe]
            if len({tuple(curve.steps) for curve in own}) != 1:
                raise ValueError(
                    f"{len(own)} curves of {recipe}; expected one or more, of the same versions."
                )
            steps = own[0].steps
            lengths = panel.twinx()
            _band(lengths, steps, [curve.response_tokens for curve in own], LENGTH_COLOR)
            _band(panel, steps, [[100 * value for value in curve.accuracy] for curve in own], COLOR)
            panel.set(title=f"{title}, {len(own)} seeds", xlabel="step", xlim=(0, steps[-1]), ylim=(0, 102))
            panel.set_ylabel("held-out accuracy, greedy, %", color=COLOR)
            lengths.set_ylim(0, 1.15 * max(max(curve.response_tokens) for curve in own))
            lengths.set_ylabel("response tokens", color=LENGTH_COLOR)


def _band(panel: Any, steps: Sequence[int], lines: Sequence[Sequence[float]], color: str) -> None:
    columns = list(zip(*lines, strict=True))
    panel.plot(steps, [sum(column) / len(column) for column in columns], color=color)
    panel.fill_between(
        steps, list(map(min, columns)), list(map(max, columns)), color=color, alpha=0.2, linewidth=0
    )
