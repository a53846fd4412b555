"""Asynchronous against synchronous training: `make asynchrony`.

    python tests/benchmarks/asynchrony.py [--plan] [--hours H] [--cores 0,1] [--only arithmetic,longtail]

Trains two recipes on the same cores at several staleness bounds, 0 being synchronous, the first with one and
with two servers, on five seeds; one seed after the other, the order of the bounds turned around each time.
All else but the number of steps is the recipe's, so that all of a recipe sample as many responses. Each run
is a line of asynchrony.jsonl, resumable; each call writes the tables of docs/measurements/asynchrony.md and
its figure. Nothing is evaluated while a run trains: its curve is the share of right answers among the
responses of each batch, which are up to the bound older than the policy, and so late for asynchronous runs.
Wants an idle machine: a row says the load at its start.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.kept import keep, markdown, panels, read_kept, write_between
from tests.benchmarks.paired import interval, plus_minus
from tests.benchmarks.training_runs import ARITHMETIC, LONGTAIL, train

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"arithmetic": ARITHMETIC, "longtail": LONGTAIL}
ONE_SERVER = ((1, 0), (1, 1), (1, 4), (1, 16))
LAYOUTS = {"arithmetic": (*ONE_SERVER, (2, 0), (2, 4)), "longtail": ONE_SERVER}
"""By recipe: (servers, staleness bound). A second server on the same cores gains nothing on the first."""
SEEDS = tuple(range(5))
NUM_STEPS = 60
"""At a bound of 16 the first 16 steps learn from the base model's answers alone."""
TARGET = 0.5
"""Share of right answers, mean of SMOOTH batches, whose time is told: about halfway up both curves."""
SMOOTH = 5
RESULTS = ROOT / "tests" / "benchmarks" / "asynchrony.jsonl"
PAGE = ROOT / "docs" / "measurements" / "asynchrony.md"
FIGURE = ROOT / "tests" / "benchmarks" / "asynchrony.svg"
BEGIN, END = "<!-- Written by `make asynchrony`: -->\n\n", "\n<!-- End of what the runs say. -->"


@dataclass(frozen=True, order=True)
class Cell:
    recipe: str
    servers: int
    staleness: int
    seed: int


@dataclass(frozen=True)
class Row:
    """A run that was made."""

    recipe: str
    servers: int
    staleness: int
    seed: int
    seconds: list[float]
    """From the moment all processes were up to the end of each step."""
    correct: list[float]
    """Share of right answers in each batch."""
    tokens: list[float]
    greedy: float
    """Held-out accuracy after training."""
    trainer_idle: float
    rollout_idle: float
    """Shares of the steady state."""
    start_seconds: float
    load: float
    """Processes that ran or waited in the minute before."""

    @property
    def cell(self) -> Cell:
        return Cell(self.recipe, self.servers, self.staleness, self.seed)

    def seconds_to(self, target: float = TARGET) -> float | None:
        """Until the mean of SMOOTH batches first reached `target`."""
        means = smoothed(self.correct)
        found = next((place for place, mean in enumerate(means) if mean >= target), None)
        return None if found is None else self.seconds[found + SMOOTH - 1]

    def tokens_per_second(self) -> float:
        return sum(self.tokens) / self.seconds[-1]


def smoothed(values: Sequence[float]) -> list[float]:
    """Means of SMOOTH values that follow each other."""
    return [statistics.fmean(values[i : i + SMOOTH]) for i in range(len(values) - SMOOTH + 1)]


def plan(only: Iterable[str] = RECIPES) -> list[Cell]:
    """Seed by seed, so that a plan that is cut has whole comparisons."""
    return [
        Cell(recipe, *layout, seed)
        for recipe in only
        for seed in SEEDS
        for layout in (LAYOUTS[recipe] if seed % 2 == 0 else LAYOUTS[recipe][::-1])
    ]


def run_cell(cell: Cell, cores: str) -> Row:
    load = os.getloadavg()[0]
    run = train(
        RECIPES[cell.recipe],
        cores,
        seed=cell.seed,
        evaluation__every_steps=0,
        trainer__num_steps=NUM_STEPS,
        rollout__max_staleness=cell.staleness,
        serving__num_servers=cell.servers,
    )
    return Row(
        **asdict(cell),
        seconds=[round(step["time_seconds"] - run.ready_time, 2) for step in run.steps],
        correct=[round(step["correct_mean"], 4) for step in run.steps],
        tokens=[step["num_tokens"] for step in run.steps],
        greedy=run.accuracy(),
        trainer_idle=round(run.share("trainer_idle_share"), 3),
        rollout_idle=round(run.share("rollout_idle_share"), 3),
        start_seconds=round(run.ready_seconds, 1),
        load=round(load, 1),
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line per recipe and layout; ratios are of runs of one seed."""
    heads = ["recipe", "servers", "bound", "seeds", "tokens/s", "steps/s, times synchronous"]
    heads += ["s to half right", "as soon, times synchronous", "trainer, servers idle", "greedy after"]
    lines = []
    by_cell = {row.cell: row for row in rows}
    for recipe, (servers, staleness) in ((name, layout) for name in RECIPES for layout in LAYOUTS[name]):
        cells = [Cell(recipe, servers, staleness, seed) for seed in SEEDS]
        if own := [by_cell[cell] for cell in cells if cell in by_cell]:
            synchronous = [by_cell.get(Cell(recipe, servers, 0, row.seed)) for row in own]
            lines.append(_line(own, synchronous if staleness else []))
    return markdown(heads, lines)


def _line(rows: Sequence[Row], synchronous: Sequence[Row | None]) -> list[object]:
    """The table's line of one layout; `synchronous` are the runs of the same seeds."""
    reached = [seconds for row in rows if (seconds := row.seconds_to()) is not None]
    pairs = [(row, other) for row, other in zip(rows, synchronous, strict=False) if other is not None]
    speed = [other.seconds[-1] / row.seconds[-1] for row, other in pairs]
    sooner = [
        theirs / own for row, other in pairs if (own := row.seconds_to()) and (theirs := other.seconds_to())
    ]
    idle = [
        statistics.fmean(each) for each in zip(*((r.trainer_idle, r.rollout_idle) for r in rows), strict=True)
    ]
    return [
        *(rows[0].recipe, rows[0].servers, rows[0].staleness, len(rows)),
        plus_minus([row.tokens_per_second() for row in rows], 0),
        plus_minus(speed, 2) if speed else "",
        plus_minus(reached),
        plus_minus(sooner, 2) if sooner else "",
        f"{idle[0]:.0%}, {idle[1]:.0%}",
        f"{plus_minus([100 * row.greedy for row in rows])}%",
    ]


def draw(rows: Sequence[Row]) -> None:
    """Right answers over seconds, a panel per recipe and number of servers; bands are 95% over seeds."""
    places = list(dict.fromkeys((row.recipe, row.servers) for row in sorted(rows, key=lambda row: row.cell)))
    with panels(FIGURE, len(places), width=4.5, height=3.2) as axes:
        for panel, place in zip(axes, places, strict=True):
            here = [row for row in rows if (row.recipe, row.servers) == place]
            for number, staleness in enumerate(sorted({row.staleness for row in here})):
                own = [row for row in here if row.staleness == staleness]
                curves = [smoothed(row.correct) for row in own]
                steps = range(min(map(len, curves)))
                found = [interval([curve[i] for curve in curves]) for i in steps]
                x = [statistics.fmean(row.seconds[i + SMOOTH - 1] for row in own) for i in steps]
                label = "synchronous" if staleness == 0 else f"bound {staleness}"
                panel.plot(x, [mean for mean, _ in found], color=f"C{number}", label=label)
                if len(own) > 1:
                    low, high = [m - w for m, w in found], [m + w for m, w in found]
                    panel.fill_between(x, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
            panel.set(
                title=f"{place[0]}, {place[1]} server(s)", xlabel="seconds", ylim=(0, 1), xlim=(0, None)
            )
        axes[0].set(ylabel=f"right answers, mean of {SMOOTH} batches")
        axes[0].legend(frameon=False)


def documented(rows: Sequence[Row]) -> str:
    """The text between the marks of the page."""
    link = f"![right answers over seconds]({os.path.relpath(FIGURE, PAGE.parent)})"
    return f"{len(rows)} of the plan's {len(plan())} runs are made.\n\n{table(rows)}\n\n{link}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Asynchronous against synchronous training, resumable.")
    parser.add_argument("--plan", action="store_true", help="say what is left, run nothing")
    parser.add_argument("--hours", type=float, default=20.0, help="no run begins later than this")
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--only", default=",".join(RECIPES))
    arguments = parser.parse_args()
    os.chdir(ROOT)
    ends = time.monotonic() + 3600 * arguments.hours
    done = {row.cell for row in read_kept(Row, RESULTS)}
    left = [cell for cell in plan(arguments.only.split(",")) if cell not in done]
    print(f"{len(left)} of {len(plan())} runs are left")
    for number, cell in enumerate([] if arguments.plan else left, start=1):
        if time.monotonic() > ends:
            break
        row = run_cell(cell, arguments.cores)
        keep(row, RESULTS)
        told = f"{row.seconds[-1]:.0f} s, greedy {row.greedy:.3f}, load {row.load}"
        print(f"{number}/{len(left)} {cell}: {told}", flush=True)
    rows = read_kept(Row, RESULTS)
    print(table(rows))
    if rows:
        draw(rows)
        write_between(PAGE, BEGIN, END, documented(rows))


if __name__ == "__main__":
    main()
