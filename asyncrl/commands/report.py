"""`asyncrl report RUN|CHAIN...`: what runs and chains learned, as page, JSON, Markdown, CSV and picture."""

import argparse
import json
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.readers.chain.tables import chain_folder, write_story
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.write import DEFAULT_FORMATS, FORMATS, write_card, write_report, write_several
from asyncrl.recipe.file import shown
from asyncrl.run.folder import read_run_recipe

HELP = (
    "Write the report of runs into their folders: base, last and best with intervals, cost, "
    "staleness, environment. Of a chain, what each stage brought and cost. At any time, also while a run "
    "trains. Several runs with --out FOLDER have one page together."
)
EXAMPLES = (
    "asyncrl report runs/r1_zero_arithmetic_cpu",
    "asyncrl report runs/r1_zero_arithmetic_cpu --format json --out reports",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help="run folders; chains, by folder or file"
    )
    parser.add_argument(
        "--format",
        type=_formats,
        default=DEFAULT_FORMATS,
        help=f"what to write, of {'|'.join(FORMATS)}, joined by commas (default {','.join(DEFAULT_FORMATS)})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the report of one run, or of several"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="write one picture of a run alone, to share")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of report.json")


def run(arguments: argparse.Namespace) -> int:
    """0 when written. Raises InputError for what cannot be read or written."""
    if arguments.schema:
        print(json.dumps(RunReport.model_json_schema(), indent=1))
        return 0
    for place in arguments.runs:
        if not place.is_dir() and chain_folder(place) is None:
            # Refuses it, before anything is written for the others.
            read_run_recipe(place)
    try:
        _write(arguments)
    except OSError as error:
        raise InputError(
            f"{error.filename} cannot be written: {error.strerror}. Name a folder: --out."
        ) from error
    return 0


def _write(arguments: argparse.Namespace) -> None:
    if not arguments.runs:
        raise InputError("Name one run folder or more, such as runs/NAME.")
    if arguments.png is not None:
        _write_card(arguments)
        return
    if arguments.out is not None and len(arguments.runs) > 1:
        _write_several(arguments)
        return
    for place in arguments.runs:
        if (chain := chain_folder(place)) is not None:
            written = write_story(chain, folder=arguments.out, formats=arguments.format)
            print(", ".join(str(shown(path)) for path in written))
            continue
        report = write_report(place, folder=arguments.out, formats=arguments.format)
        files = (str(shown((arguments.out or place) / FORMATS[name])) for name in arguments.format)
        print(f"{', '.join(files)}: {report.run.state}, {report.run.steps} steps")


def _write_card(arguments: argparse.Namespace) -> None:
    places = arguments.runs
    if len(places) > 1 or chain_folder(places[0]) is not None:
        found = f"{len(places)} are named" if len(places) > 1 else f"{places[0]} is a chain"
        raise InputError(f"--png is the picture of one run, and {found}. Name one run folder.")
    write_card(places[0], arguments.png)
    print(shown(arguments.png))


def _write_several(arguments: argparse.Namespace) -> None:
    chains = [place for place in arguments.runs if chain_folder(place) is not None]
    if chains:
        raise InputError(
            f"--out is the page of several runs, and {chains[0]} is a chain. Name run folders alone."
        )
    written = write_several(arguments.runs, folder=arguments.out, formats=arguments.format)
    if not written:
        raise InputError("Several runs have html and markdown. `asyncrl compare --json` has their numbers.")
    print(", ".join(str(shown(path)) for path in written))


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(FORMATS)}")
    return names
