"""The ablation of the algorithms: `make algorithms`.

    python tests/benchmarks/algorithms/run.py [--plan] [--arms A,B] [--hours H] [--cores 0,1] [--results FILE]

Runs the cells of the plan that the results do not hold yet, one on each core, and appends a line per cell; a
cell that was cut begins again, and a cell waits for the tuning of its arm. --arms and --hours limit a call.
--plan prints what there is, what is left and its cost, and runs nothing. Each call on the committed results
writes figures, verdicts and the tables of docs/measurements/ablation.md from them. Ends with 1 where a cell
failed.
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
from tests.benchmarks.algorithms.arms import ARMS
from tests.benchmarks.algorithms.cells import CellFailed, RunCell, Worker
from tests.benchmarks.algorithms.docs import write_docs
from tests.benchmarks.algorithms.plan import RECIPE, ROOT, Cell, Costs, Plan, Row, fit_costs, make_plan
from tests.benchmarks.algorithms.report import draw, markdown, write_verdicts
from tests.benchmarks.algorithms.results import RESULTS, append_row, check_base, read_rows

AXES = ("tuning", "staleness", "mismatch")
COSTS = Costs(2.0, 0.6)
"""A start as measured; updates as assumed until the results hold a cell."""


def overview(plan: Plan, rows: Sequence[Row], costs: Costs, num_cores: int) -> str:
    """Markdown: cells of each axis, how many there are, and what the others cost."""
    done = {row.cell for row in rows}
    lines = ["| axis | cells | run | hours of one core, all | left |", "|---|---|---|---|---|"]
    for axis in AXES:
        cells = [cell for cell in plan.cells if cell.axis == axis]
        left = [cell for cell in cells if cell not in done]
        hours = f"{costs.hours(cells):.1f} | {costs.hours(left):.1f}"
        lines.append(f"| {axis} | {len(cells)} | {len(cells) - len(left)} | {hours} |")
    left = [cell for cell in plan.cells if cell not in done]
    return "\n".join(lines) + (
        f"\n\n{len(left)} of {len(plan.cells)} cells are left: {costs.hours(left) / num_cores:.1f} h on "
        f"{num_cores} cores at {costs.per_update:.2f} CPU s per update ({len(rows)} cells measured)."
    )


def run_cells(
    path: Path, workers: Sequence[RunCell], *, hours: float, costs: Costs, arms: Sequence[str] = tuple(ARMS)
) -> int:
    """Runs what the results at `path` lack of these arms, in the plan's order, one cell on each worker; none
    begins that would not end within `hours`. Returns how many failed."""
    ends, changed, rows = time.monotonic() + 3600 * hours, threading.Condition(), read_rows(path)
    begun, failed, is_over = {row.cell for row in rows}, list[Cell](), False

    def left() -> list[Cell]:
        return [cell for cell in make_plan(rows).cells if cell not in begun and cell.arm in arms]

    def begin() -> Cell | None:
        """The next cell; waits where rates are to come from the other workers."""
        while not is_over:
            cell = next(filter(make_plan(rows).is_ready, left()), None)
            if cell is not None:
                if time.monotonic() + costs.of(cell) > ends:
                    return None
                begun.add(cell)
                return cell
            if len(begun) == len(rows) + len(failed):
                return None
            changed.wait()
        return None

    def work(run_cell: RunCell) -> None:
        nonlocal is_over
        while True:
            with changed:
                cell = begin()
            if cell is None:
                return
            row = None
            try:
                found = run_cell(cell)
                check_base(found, rows)
                row = found
            except CellFailed as error:
                print(error, file=sys.stderr, flush=True)
            except (KeyboardInterrupt, BrokenProcessPool, InputError):
                is_over = True
                raise
            finally:
                with changed:
                    if row is None:
                        failed.append(cell)
                    else:
                        append_row(path, row)
                        rows.append(row)
                    num_left = len(left())
                    changed.notify_all()
            if row is not None:
                print(
                    f"{cell.name()}: area {row.area():.3f}, greedy {row.greedy[1]:.3f}, "
                    f"{row.cpu_seconds:.0f} CPU s; {num_left} left",
                    flush=True,
                )

    with ThreadPoolExecutor(len(workers)) as pool:
        for done in [pool.submit(work, worker) for worker in workers]:
            done.result()
    if cells := left():
        print(f"{len(cells)} cells are not begun: --hours {hours:g} is over, or the tuning of an arm failed.")
    return len(failed)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The ablation of the algorithms, resumable.")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--hours", type=float, default=20.0, help="no cell begins that would end later")
    parser.add_argument("--cores", type=_numbers, default=sorted(os.sched_getaffinity(0))[:2])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plan", action="store_true", help="print what is left and its cost, run nothing")
    arguments = parser.parse_args(words)
    for name in arguments.arms:
        if name not in ARMS:
            raise InputError(f"--arms {name}: expected {', '.join(ARMS)}.")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    rows = read_rows(arguments.results)
    costs = fit_costs(rows, COSTS)
    print(overview(make_plan(rows), rows, costs, len(arguments.cores)), flush=True)
    num_failed = 0
    if not arguments.plan:
        prepare(load_recipe(ROOT / RECIPE), ROOT / RECIPE, [])
        with contextlib.ExitStack() as closing:
            workers = [Worker(core) for core in arguments.cores]
            for worker in workers:
                closing.callback(worker.close)
            num_failed = run_cells(
                arguments.results, workers, hours=arguments.hours, costs=costs, arms=arguments.arms
            )
        rows = read_rows(arguments.results)
    print(f"\n{markdown(rows)}")
    if arguments.results.resolve() == RESULTS:
        figures = draw(rows)
        write_verdicts(rows, VERDICTS)
        write_docs(rows, figures)
    return 1 if num_failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
