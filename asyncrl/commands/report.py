"""`asyncrl report RUN...`: the numbers of a reproduction as a page, JSON, Markdown and LaTeX."""

import argparse
import json
import math
import sys
from pathlib import Path

from pydantic import BaseModel

from asyncrl.errors import InputError
from asyncrl.readers.report.costs import WATTS_PER_CORE, WATTS_PER_GPU, Prices
from asyncrl.readers.report.schema import CombinedReport, RunReport
from asyncrl.readers.report.write import DEFAULT_FORMATS, FORMATS, write_combined, write_report
from asyncrl.recipe.file import shown

HELP = (
    "Write the report of runs into their folders: base, last and best with intervals, cost, energy, "
    "staleness, environment. At any time, also while a run trains. `asyncrl reproduce RUN/report.json` "
    "trains it again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="run folders")
    parser.add_argument(
        "--format",
        type=_formats,
        default=DEFAULT_FORMATS,
        help=f"what to write, of {'|'.join(FORMATS)}, joined by commas (default {','.join(DEFAULT_FORMATS)})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of the report; with several runs, of an additional report on all of them",
    )
    parser.add_argument("--price-per-hour", type=_amount, help="price in any currency, for the cost")
    parser.add_argument(
        "--per", choices=("machine", "gpu", "core"), default="machine", help="unit of the price"
    )
    parser.add_argument(
        "--watts-per-core",
        type=_amount,
        default=WATTS_PER_CORE,
        help="power of a computing core, to estimate energy that no counter measured (default %(default)g)",
    )
    parser.add_argument(
        "--watts-per-gpu", type=_amount, default=WATTS_PER_GPU, help="power of a GPU (default %(default)g)"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of report.json")


def run(arguments: argparse.Namespace) -> int:
    """0 when written, 2 for what cannot be read or written."""
    if arguments.schema:
        kinds: dict[str, type[BaseModel]] = {"one run": RunReport, "several runs": CombinedReport}
        print(json.dumps({title: kind.model_json_schema() for title, kind in kinds.items()}, indent=1))
        return 0
    try:
        _write(arguments)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename} cannot be written: {error.strerror}. Name a folder: --out.", file=sys.stderr)
        return 2
    return 0


def _write(arguments: argparse.Namespace) -> None:
    runs: list[Path] = arguments.runs
    if not runs:
        raise InputError("Name one run folder or more, such as runs/NAME.")
    prices = Prices(
        price_per_hour=arguments.price_per_hour,
        per=arguments.per,
        watts_per_core=arguments.watts_per_core,
        watts_per_gpu=arguments.watts_per_gpu,
    )
    folder = arguments.out if len(runs) == 1 else None
    reports = []
    for place in runs:
        report, _ = write_report(place, folder=folder, formats=arguments.format, prices=prices)
        reports.append(report)
        _say(folder or place, arguments.format, f"{report.run.state}, {report.run.steps} steps")
    if len(runs) > 1 and arguments.out is not None:
        write_combined(reports, arguments.out, formats=arguments.format)
        _say(arguments.out, arguments.format, f"{len(runs)} runs")


def _say(folder: Path, formats: tuple[str, ...], what: str) -> None:
    print(f"{', '.join(str(shown(folder / FORMATS[name])) for name in formats)}: {what}")


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(FORMATS)}")
    return names


def _amount(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value
