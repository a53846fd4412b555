"""A run in resumed pieces, looked at as a soak: its books, its memory, its curve.

    python tests/benchmarks/long_run.py RUN [--reference GREEDY_BEFORE,AFTER] [--rows FILE.jsonl]

Reads a run folder, also one that is to be resumed. Checks that each generated token has one fate, that each
step trained a whole batch and no group twice, and that versions follow each other over all pieces. Prints
the pieces with the memory of each process at their first and last steps, and the evaluations. --rows writes
what the figure beside it is drawn of: a line per step and evaluation; --reference adds the greedy accuracies
that a paper has for its own model, in percent. Ends with 1 where a check fails.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.journal.conservation import Conservation, read_conservation
from asyncrl.journal.reader import JournalReader
from asyncrl.recipe.file import load_recipe
from asyncrl.run.metrics_file import written_rows
from asyncrl.system.places import JOURNAL, METRICS, RECIPE
from tests.benchmarks.kept import markdown, panels

PROCESSES = ("trainer", "server", "controller")
_BATCHES = """
SELECT taken_version + 1, count(*) FROM groups WHERE state IN ('taken', 'trained') GROUP BY 1 ORDER BY 1
"""
STEP_KEPT = (
    *("reward_mean", "response_tokens_mean", "cut_share", "entropy", "grad_norm", "staleness_mean"),
    *("mismatch_kl", "num_tokens", "step_seconds"),
)
EVALUATION_KEPT = ("when", "num_tasks", "greedy_accuracy", "greedy_low", "greedy_high", "avg_at_k")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """One start of the run."""

    first_step: int
    last_step: int
    hours: float
    """From the moment that servers and trainer were ready to its last row."""
    memory: dict[str, tuple[float, float]]
    """Process -> GiB at its first and its last step."""


def pieces_of(rows: Sequence[Row]) -> list[Piece]:
    """A piece begins where servers and trainer are ready; one without a step is none."""
    starts = [i for i, row in enumerate(rows) if row["kind"] == "event" and row["event"] == "ready"]
    found = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        steps = [row for row in rows[start:end] if row["kind"] == "step"]
        if not steps:
            continue
        # The next start tells of some things before it is ready.
        last = max(row["time_seconds"] for row in rows[start:end] if row["kind"] != "event")
        hours = (last - rows[start]["time_seconds"]) / 3600
        memory = {name: (_gib(steps[0], name), _gib(steps[-1], name)) for name in PROCESSES}
        found.append(Piece(steps[0]["step"], steps[-1]["step"], hours, memory))
    return found


def _gib(row: Row, process: str) -> float:
    return float(row[f"{process}_memory_gib"])


def faults_of(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Sentences on what the books of a run say that may not be."""
    faults = []
    if missing := Conservation(read_conservation(folder / JOURNAL)).missing_tokens():
        faults.append(f"{missing} tokens have no fate, or two")
    batches = dict(JournalReader(folder / JOURNAL).read(_BATCHES))
    size = load_recipe(folder / RECIPE).rollout.groups_per_batch
    faults += [
        f"step {step} trained {count} groups, not {size}" for step, count in batches.items() if count != size
    ]
    steps = sorted({row["step"] for row in rows if row["kind"] == "step"})
    if steps != list(range(1, len(steps) + 1)):
        faults.append(f"metrics.jsonl has {len(steps)} steps, the last of which is {steps[-1]}")
    # The newest batch may have been taken and not trained.
    if not set(steps) <= set(batches) or len(batches) > len(steps) + 1:
        faults.append(f"the journal has {len(batches)} batches, metrics.jsonl {len(steps)} steps")
    return faults


def report(pieces: Sequence[Piece], evaluations: Sequence[Row]) -> str:
    """Markdown."""
    of_pieces = [
        (
            number,
            f"{piece.first_step} to {piece.last_step}",
            f"{piece.hours:.2f}",
            *("{:.2f} -> {:.2f}".format(*piece.memory[name]) for name in PROCESSES),
        )
        for number, piece in enumerate(pieces, start=1)
    ]
    of_evaluations = [
        (row["step"], f"{100 * greedy:.1f}% {100 * row['greedy_low']:.0f}-{100 * row['greedy_high']:.0f}")
        for row in evaluations
        for greedy in [row["greedy_accuracy"]]
    ]
    heads = ["piece", "steps", "hours", *(f"{name}, GiB" for name in PROCESSES)]
    hours = sum(piece.hours for piece in pieces)
    curve = markdown(["after step", "greedy, 95%"], of_evaluations)
    return f"{markdown(heads, of_pieces)}\n\n{hours:.2f} hours in {len(pieces)} pieces\n\n{curve}"


def kept_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows for figure and tables; of a step that was trained again after a crash, the last one."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        names = {"step": STEP_KEPT, "eval": EVALUATION_KEPT}.get(row["kind"], ())
        if names:
            kept = {name: _rounded(row[name]) for name in names if name in row}
            found[row["kind"], row["step"]] = {"kind": row["kind"], "step": row["step"], **kept}
    return sorted(found.values(), key=lambda row: (row["step"], row["kind"]))


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def draw(path: Path, rows: Sequence[Row], reference: Sequence[float]) -> None:
    """Held-out accuracy beside that of a paper; reward and length of what was trained, also over 10 steps."""
    steps = [row for row in rows if row["kind"] == "step"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    with panels(path, 3, width=4.0, height=3.1) as (accuracy, reward, length):
        low = [100 * (row["greedy_accuracy"] - row["greedy_low"]) for row in evaluations]
        high = [100 * (row["greedy_high"] - row["greedy_accuracy"]) for row in evaluations]
        accuracy.errorbar(
            [row["step"] for row in evaluations],
            [100 * row["greedy_accuracy"] for row in evaluations],
            yerr=[low, high],
            marker="o",
            capsize=3,
        )
        for value, words in zip(reference, ("before", "after"), strict=False):
            accuracy.axhline(value, color="#c2571a", linestyle="--", linewidth=1)
            place = evaluations[0]["step"], value + 0.8
            accuracy.annotate(f"paper, {words}: {value:g}%", place, color="#c2571a", fontsize=8)
        # The words stand above their lines.
        top = max([*reference, *(100 * row["greedy_high"] for row in evaluations)])
        accuracy.set(title="held-out, greedy, %", xlabel="step", ylim=(0, 1.15 * top))
        for panel, column, title in (
            (reward, "reward_mean", "reward of trained responses"),
            (length, "response_tokens_mean", "tokens of trained responses"),
        ):
            values = [row[column] for row in steps]
            panel.plot([row["step"] for row in steps], values, alpha=0.3)
            panel.plot([row["step"] for row in steps], _smooth(values))
            panel.set(title=title, xlabel="step")


def _smooth(values: Sequence[float]) -> list[float]:
    """[S] the mean of each value and at most nine before it."""
    return [sum(part := values[max(0, i - 9) : i + 1]) / len(part) for i in range(len(values))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--reference", default="", help="greedy accuracies before and after, in percent")
    parser.add_argument("--rows", type=Path, help="file to write; its figure stands beside it")
    arguments = parser.parse_args()
    rows = list(written_rows(arguments.run / METRICS))
    kept = kept_rows(rows)
    print(report(pieces_of(rows), [row for row in kept if row["kind"] == "eval"]))
    if arguments.rows:
        arguments.rows.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        draw(
            arguments.rows.with_suffix(".svg"), kept, [float(x) for x in arguments.reference.split(",") if x]
        )
    faults = faults_of(arguments.run, rows)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "the books balance")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
