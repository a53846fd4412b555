"""`asyncrl servers RUN list | add URL | remove URL`: the rollout servers of a live run."""

import argparse
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from asyncrl.controller.http_service import SERVERS_PATH
from asyncrl.errors import InputError
from asyncrl.system.paths import is_run_folder, nearest_run
from asyncrl.system.places import CONTROLLER_URL, TOKEN
from asyncrl.wire.access import bearer

HELP = (
    "List the rollout servers of a run, add one that already runs (SGLang 0.5.23) or remove one. A server "
    "that was added serves once its weights are verified; one that is removed gets nothing new, and what "
    "streams from it resumes elsewhere from its prefix; a local one then ends, and starts again when its URL "
    "is added. Run it where the controller runs. A run that is started again keeps the changes until its "
    "recipe names other servers; a local server that was removed is then one less."
)
EXAMPLES = (
    "asyncrl servers runs/r1_zero_arithmetic_cpu list",
    "asyncrl servers runs/r1_zero_arithmetic_cpu add http://10.0.0.7:30000",
)
TIMEOUT_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("action", choices=("list", "add", "remove"))
    parser.add_argument("url", nargs="?", default="", help="such as http://10.0.0.7:30000")


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InputError when the run is not live or refuses."""
    for server in change_servers(arguments.run, arguments.action, arguments.url):
        print(_line(server))
    return 0


def change_servers(run: Path, action: str, url: str) -> list[dict[str, Any]]:
    """The controller's view of each server afterwards. Raises InputError."""
    if (action == "list") == bool(url):
        raise InputError(f"{action} takes {'no URL' if url else 'the URL of a server'}.")
    try:
        controller = (run / CONTROLLER_URL).read_text()
    except OSError:
        raise InputError(
            f"{run} is not the folder of a live run: it holds no {CONTROLLER_URL}."
            f"{'' if is_run_folder(run) else nearest_run(run)}"
        ) from None
    request = urllib.request.Request(
        controller + SERVERS_PATH,
        json.dumps({"action": action, "url": url}).encode(),
        headers=bearer(_token(run)),
        method="POST",
    )
    try:
        # The controller is on this machine: no proxy stands between.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=TIMEOUT_SECONDS) as response:
            found: list[dict[str, Any]] = json.load(response)
            return found
    except urllib.error.HTTPError as error:
        raise InputError(error.read().decode()) from None
    except OSError as error:
        raise InputError(f"The controller of {run} does not answer at {controller}: {error}") from None


def _token(run: Path) -> str:
    try:
        return (run / TOKEN).read_text()
    except FileNotFoundError:
        # The run has just ended, or has no token: the controller says what it needs.
        return ""
    except OSError as error:
        raise InputError(
            f"{run / TOKEN} cannot be read: {error.strerror}. Ask the owner of the run."
        ) from None


def _line(server: dict[str, Any]) -> str:
    version = "-" if server["version"] is None else server["version"]
    words = [
        f"{server['url']:<28} {server['state']:<10} version {version:<5} {server['num_running']:>4} requests"
    ]
    if server["cache_tokens"] is not None:
        words += [f"{server['held_tokens']:,} of {server['cache_tokens']:,} tokens"]
    words += [server["reason"]] if server["reason"] else []
    return "  ".join(words)
