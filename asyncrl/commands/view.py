"""`asyncrl view RUNS...`: a local page that shows live and finished runs."""

import argparse
import asyncio
import signal
from pathlib import Path

from asyncrl.commands.parser import whole
from asyncrl.errors import InputError
from asyncrl.readers.page.app import export, serve
from asyncrl.readers.page.runs import Runs

HELP = "Watch runs on a local page: curves, servers, each trajectory token by token and what happened to it."
EXAMPLES = ("asyncrl view runs", "asyncrl view runs/r1_zero_arithmetic_cpu --export page.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run folder, a folder of run folders, or a chain"
    )
    parser.add_argument(
        "--port", type=whole(0, 65535), default=0, help="port of the local page (default: a free one)"
    )
    parser.add_argument("--export", type=Path, metavar="FILE.html", help="write the runs as one static page")
    parser.add_argument(
        "--groups", type=whole(1), default=500, help="newest groups of each run to export (default 500)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InputError."""
    runs = Runs(arguments.runs)
    if arguments.export is not None:
        _export(runs, arguments.export, num_groups=arguments.groups)
    else:
        asyncio.run(_serve(runs, arguments.port))
    return 0


def _export(runs: Runs, path: Path, *, num_groups: int) -> None:
    page = export(runs.all(), runs.chains(), num_groups=num_groups)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--export {path} cannot be written: {error.strerror}.") from error
    print(f"{path}: {len(page) / 1e6:.1f} MB")


async def _serve(runs: Runs, port: int) -> None:
    until = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    try:
        await serve(
            runs, port=port, until=until, ready=lambda url: print(f"{url}  (Ctrl-C to stop)", flush=True)
        )
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--port {port} cannot be used ({error}). Choose another, or 0 for a free one."
        ) from error
