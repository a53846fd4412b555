"""`asyncrl verify`: grades rows of {"gold", "response"} with a verifier, or checks a verifier's contract.

Rows go to standard output in their order, with "verdict" added; progress and a summary to standard error.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

from asyncrl.commands.parser import number, whole
from asyncrl.errors import InputError
from asyncrl.observe.terminal.stage import LateStage
from asyncrl.system.files import decoded
from asyncrl.system.paths import nearest_path, why
from asyncrl.system.streams import in_thread, lines
from sandbox.cgroup import available_cores
from verifiers.contract import check_contract
from verifiers.files import GradingSummary, ResponseRow, RowError, grade_rows, read_rows, verdict_fields
from verifiers.judgement import why_not_alone
from verifiers.pool import VerifierPool
from verifiers.registry import VERIFIERS, load_verifier

HELP = "Grade rows of answers with a verifier, or check that a verifier keeps the contract."
EXAMPLES = ("asyncrl verify answers.jsonl --verifier math", "asyncrl verify --contract exact")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", help='JSON lines with "gold" and "response"; - reads standard input'
    )
    parser.add_argument(
        "--verifier", default="math", metavar="NAME", help="built-in, module:Name or ./file.py:Name"
    )
    add_settings(parser, "an option of the verifier")
    parser.add_argument(
        "--workers", type=whole(1), default=min(4, available_cores()), help="worker processes"
    )
    parser.add_argument(
        "--timeout", type=number(above=0), default=2.0, metavar="SECONDS", help="limit of one verification"
    )
    parser.add_argument(
        "--contract", metavar="NAME", help="check this verifier instead; FILE may give example rows"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 done, 1 a contract is broken. Raises InputError."""
    try:
        options = parse_settings(arguments.settings)
        if arguments.contract:
            VERIFIERS.find(arguments.contract, Path.cwd())
            return asyncio.run(_contract(arguments, options))
        if arguments.file is None:
            raise ValueError("No FILE is given, expected a file of JSON lines, or - for standard input.")
        rows = sys.stdout
        # The output of a verifier is no row.
        with contextlib.redirect_stdout(sys.stderr):
            verifier = load_verifier(arguments.verifier, options, folder=Path.cwd())
            if (why := why_not_alone(arguments.verifier, verifier)) is not None:
                raise ValueError(f"{why}, and each row of a file has one. --contract checks it with groups.")
            return asyncio.run(_verify(arguments, options, rows))
    except BrokenPipeError:
        # The reader has left, which the command line deals with; it is no mistake in the input.
        raise
    except (ValueError, OSError) as error:
        raise InputError(f"asyncrl verify: {_said(error, arguments.file)}") from error


def _said(error: ValueError | OSError, file: str | None) -> str:
    if not isinstance(error, OSError):
        return str(error)
    meant = nearest_path(file) if file is not None and isinstance(error, FileNotFoundError) else ""
    return f"{error.filename or file} cannot be read: {why(error)}.{meant}"


def add_settings(parser: argparse._ActionsContainer, help: str) -> None:
    """Parsed to `settings`, for `parse_settings`."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=help)


def parse_settings(settings: list[str]) -> dict[str, object]:
    """key=value pairs; a value that is JSON is read as such, all else is a string. Raises InputError."""
    options: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InputError(f"--set {setting!r}: expected KEY=VALUE.")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


async def _verify(arguments: argparse.Namespace, options: dict[str, object], output: TextIO) -> int:
    summary, started = GradingSummary(), time.perf_counter()
    num_rows, count = _num_rows(arguments.file), 0
    async with VerifierPool(arguments.workers, arguments.timeout) as pool:
        rows, folder, workers = _rows(arguments.file), Path.cwd(), arguments.workers
        graded = grade_rows(rows, pool, arguments.verifier, options, folder=folder, num_workers=workers)
        with LateStage("grading") as shown:
            async for row, verdict, is_bad_gold in graded:
                summary.add(verdict)
                summary.num_bad_golds += is_bad_gold
                print(json.dumps({**row.fields, "verdict": verdict_fields(verdict)}), file=output)
                count += 1
                shown.show(f"{count:,} rows", done=count, total=num_rows)
    output.flush()
    print(summary.sentence(time.perf_counter() - started), file=sys.stderr)
    return 0


async def _rows(name: str) -> AsyncIterator[ResponseRow]:
    """The rows of a file; of standard input as they arrive."""
    if name != "-":
        with Path(name).open("rb") as file:
            texts = (decoded(line, name, line=number) for number, line in enumerate(file, start=1))
            for row in read_rows(texts, name):
                yield row
        return
    async for row in in_thread(read_rows(lines(), "standard input")):
        yield row


def _num_rows(name: str) -> int | None:
    """Rows of a file; None for standard input, whose end is not known."""
    if name == "-":
        return None
    with Path(name).open("rb") as file:
        return sum(1 for line in file if line.strip())


async def _contract(arguments: argparse.Namespace, options: dict[str, object]) -> int:
    rows = [row async for row in _rows(arguments.file)] if arguments.file else []
    golds, right, wrong = _examples(rows)
    checks = await check_contract(
        arguments.contract, options, golds, folder=Path.cwd(), right=right, wrong=wrong
    )
    for check in checks:
        mark = "ok  " if check.passed else "FAIL"
        print(f"{mark} {check.promise}{f': {check.detail}' if check.detail else ''}")
    return 0 if all(check.passed for check in checks) else 1


def _examples(rows: list[ResponseRow]) -> tuple[list[Any], list[tuple[Any, str]], list[tuple[Any, str]]]:
    """(golds, right pairs, wrong pairs) from rows with "gold", "response" and "expect"."""
    if not rows:
        return ["42"], [], []
    pairs: dict[bool, list[tuple[Any, str]]] = {True: [], False: []}
    for row in rows:
        expect = row.fields.get("expect")
        if expect not in (None, "correct", "wrong", "no_answer"):
            raise RowError(f"{row.where}: 'expect' is {expect!r}, expected correct, wrong or no_answer.")
        if expect is not None:
            pairs[expect == "correct"].append((row.gold, row.response))
    golds = list({json.dumps(row.gold, sort_keys=True): row.gold for row in rows}.values())
    return golds, pairs[True], pairs[False]
