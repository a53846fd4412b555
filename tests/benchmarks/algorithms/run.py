"""The ablation of the algorithms: `make algorithms`.

    python tests/benchmarks/algorithms/run.py [--plan] [--axis A] [--arms A,B] [--lags 0,16] [--seeds 0,1]
        [--hours H] [--untuned] [--cores 0,1] [--results FILE]

Runs the cells of the plan that the results do not hold yet, one on each core, and appends a line per cell; a
cell that was cut begins again. --axis, --arms, --lags, --seeds and --hours limit a call. Cells wait
for the tuning of their arm, unless --untuned takes the recipe's rate. --plan prints what there is, what is
left and its cost, and runs nothing. Each call on the committed results writes figures, verdicts and the
tables of docs/algorithms.md from them. Ends with 1 where a cell failed.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from asyncrl.algorithms.catalog import VERDICTS
from asyncrl.errors import InputError
from asyncrl.launch.prepare import prepare
from asyncrl.recipe.file import load_recipe
from tests.benchmarks.algorithms.arms import ARMS, FACTORS
from tests.benchmarks.algorithms.cells import CellFailed, RunCell, Worker
from tests.benchmarks.algorithms.docs import write_docs
from tests.benchmarks.algorithms.plan import RECIPES, ROOT, Cell, Costs, Row, fit_costs, make_plan
from tests.benchmarks.algorithms.report import axis_table, draw, markdown, tuning_table, write_verdicts
from tests.benchmarks.algorithms.results import RESULTS, append_row, read_rows

AXES = ("tuning", "staleness", "mismatch", "tail", "factors")
COSTS = Costs(2.0, {"reasoning": 0.6, "tail": 3.0})
"""A start as measured; updates as assumed until the results hold a cell of the recipe."""


def wanted_cells(arguments: argparse.Namespace, rows: Sequence[Row]) -> list[Cell]:
    """The plan's cells within the call's limits, without those that there are."""
    plan, done = make_plan(rows), {row.cell for row in rows}
    return [
        cell
        for cell in plan.cells
        if cell not in done
        and (not arguments.axis or cell.axis in arguments.axis)
        and (not arguments.arms or cell.arm in arguments.arms)
        and (arguments.lags is None or cell.lag in arguments.lags)
        and (arguments.seeds is None or cell.seed in arguments.seeds)
    ]


def overview(rows: Sequence[Row], costs: Costs, num_cores: int) -> str:
    """Markdown: cells of each axis, how many there are, and what the others cost."""
    plan, done = make_plan(rows), {row.cell for row in rows}
    lines = ["| axis | cells | run | hours of one core, all | left |", "|---|---|---|---|---|"]
    for axis in AXES:
        cells = [cell for cell in plan.cells if cell.axis == axis]
        left = [cell for cell in cells if cell not in done]
        hours = f"{costs.hours(cells):.1f} | {costs.hours(left):.1f}"
        lines.append(f"| {axis} | {len(cells)} | {len(cells) - len(left)} | {hours} |")
    left = [cell for cell in plan.cells if cell not in done]
    whole = f"{costs.hours(plan.cells) / num_cores:.1f} h on {num_cores} cores"
    measured = ", ".join(
        f"{name} {costs.per_update[name]:.2f} CPU s per update"
        f" ({sum(row.cell.recipe == name for row in rows)} cells measured)"
        for name in RECIPES
    )
    lines += ["", f"The whole plan: {whole}; left: {costs.hours(left) / num_cores:.1f} h. {measured}."]
    return "\n".join(lines)


def run_cells(
    cells: Sequence[Cell], path: Path, workers: Sequence[RunCell], *, hours: float, costs: Costs
) -> int:
    """Runs them in their order, one on each worker; none begins that would not end within `hours`. Returns
    how many failed."""
    ends, lock, queue, failed = time.monotonic() + 3600 * hours, threading.Lock(), list(cells), []

    def work(run_cell: RunCell) -> None:
        while True:
            with lock:
                if not queue or time.monotonic() + costs.of(queue[0]) > ends:
                    return
                cell = queue.pop(0)
            try:
                row = run_cell(cell)
            except (KeyboardInterrupt, BrokenProcessPool):
                with lock:
                    queue.clear()
                raise
            except CellFailed as error:
                with lock:
                    failed.append(cell)
                print(error, file=sys.stderr, flush=True)
                continue
            with lock:
                append_row(path, row)
                left = len(queue)
            print(
                f"{cell.name()}: area {row.area():.3f}, greedy {row.greedy[1]:.3f}, "
                f"{row.cpu_seconds:.0f} CPU s; {left} left",
                flush=True,
            )

    with ThreadPoolExecutor(len(workers)) as pool:
        for done in [pool.submit(work, worker) for worker in workers]:
            done.result()
    if queue:
        print(f"{len(queue)} cells are not begun: --hours {hours:g} is over.")
    return len(failed)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The ablation of the algorithms, resumable.")
    parser.add_argument("--axis", type=lambda text: text.split(","), default=[], help=", ".join(AXES))
    parser.add_argument("--arms", type=lambda text: text.split(","), default=[])
    parser.add_argument("--lags", type=_numbers)
    parser.add_argument("--seeds", type=_numbers)
    parser.add_argument("--hours", type=float, default=20.0, help="no cell begins that would end later")
    parser.add_argument("--untuned", action="store_true", help="the recipe's rate where an arm is not tuned")
    parser.add_argument("--cores", type=_numbers, default=sorted(os.sched_getaffinity(0))[:2])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plan", action="store_true", help="print what is left and its cost, run nothing")
    arguments = parser.parse_args(words)
    for name in arguments.axis:
        if name not in AXES:
            raise InputError(f"--axis {name}: expected {', '.join(AXES)}.")
    for name in arguments.arms:
        if name not in ARMS and name not in FACTORS:
            raise InputError(f"--arms {name}: expected {', '.join((*ARMS, *FACTORS))}.")
    return arguments


def check_tuned(cells: Sequence[Cell], rows: Sequence[Row]) -> None:
    """Raises InputError for an arm whose tuning is not complete."""
    plan = make_plan(rows)
    waiting = sorted({cell.arm for cell in cells if cell.axis != "tuning" and not plan.is_tuned[cell.arm]})
    if waiting:
        raise InputError(
            f"The learning rate of {', '.join(waiting)} is not tuned yet. Run --axis tuning first, or name "
            f"--untuned: cells at the recipe's rate, which no verdict counts."
        )


def main() -> int:
    arguments = parse_arguments()
    rows = read_rows(arguments.results)
    costs = fit_costs(rows, COSTS)
    print(overview(rows, costs, len(arguments.cores)), flush=True)
    num_failed = 0
    if not arguments.plan:
        num_failed = _run(arguments, rows, costs)
        rows = read_rows(arguments.results)
    for axis in AXES[1:]:
        print(f"\n{axis}\n\n{axis_table(axis, rows)}")
    print(f"\ntuning\n\n{tuning_table(rows)}\n\n{markdown(rows)}")
    if arguments.results.resolve() == RESULTS:
        figures = draw(rows)
        write_verdicts(rows, VERDICTS)
        write_docs(rows, figures)
    return 1 if num_failed else 0


def _run(arguments: argparse.Namespace, rows: Sequence[Row], costs: Costs) -> int:
    """Tuning first: its rows choose the rates of the cells that follow. Returns how many cells failed."""
    ends, num_failed = time.monotonic() + 3600 * arguments.hours, 0
    for is_tuning in (True, False):
        cells = [cell for cell in wanted_cells(arguments, rows) if (cell.axis == "tuning") == is_tuning]
        if arguments.untuned and not arguments.axis and is_tuning:
            continue
        if not is_tuning and not arguments.untuned:
            check_tuned(cells, rows)
        for recipe in {cell.recipe for cell in cells}:
            path = ROOT / RECIPES[recipe]
            prepare(load_recipe(path), path, [])
        hours = (ends - time.monotonic()) / 3600
        with contextlib.ExitStack() as closing:
            workers = [Worker(core) for core in arguments.cores]
            for worker in workers:
                closing.callback(worker.close)
            num_failed += run_cells(cells, arguments.results, workers, hours=hours, costs=costs)
        rows = read_rows(arguments.results)
    return num_failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
