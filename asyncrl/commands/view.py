"""`asyncrl view RUN`: a local page to browse the trajectories of a live or finished run."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.observe.browser import Browser
from asyncrl.observe.page import export, serve

HELP = "Browse the trajectories of a run: version of each token, verdict, why it was trained or dropped."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--port", type=int, default=0, help="of the local page (default: a free one)")
    parser.add_argument("--export", type=Path, metavar="FILE.html", help="write a static page instead")
    parser.add_argument("--groups", type=int, default=500, help="newest groups to export (default 500)")


def run(arguments: argparse.Namespace) -> int:
    try:
        browser = Browser(arguments.run)
        if arguments.export is not None:
            _export(browser, arguments.export, num_groups=arguments.groups)
        else:
            asyncio.run(_serve(browser, arguments.port))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _export(browser: Browser, path: Path, *, num_groups: int) -> None:
    page = export(browser, num_groups=num_groups)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--export {path} cannot be written: {error.strerror}.") from error
    print(f"{path}: {len(page) / 1e6:.1f} MB")


async def _serve(browser: Browser, port: int) -> None:
    until = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    try:
        await serve(browser, port=port, until=until, ready=_announce)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--port {port} cannot be used ({error}). Choose another, or 0 for a free one."
        ) from error


def _announce(url: str) -> None:
    print(f"{url}  (Ctrl-C to stop)", flush=True)
