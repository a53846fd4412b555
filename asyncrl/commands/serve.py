"""`asyncrl serve CONTROLLER`: a rollout server on this machine for a run on another one."""

import argparse
import asyncio
import tempfile
from pathlib import Path

from asyncrl.commands.pages import say_failure
from asyncrl.commands.parser import whole
from asyncrl.errors import InputError, ServerError
from asyncrl.launch.engine_only import fetch_server, serve
from asyncrl.observe.terminal.table import warn_on_stderr
from asyncrl.recipe.sections.serving import LOOPBACK
from asyncrl.system.machine import outward_address
from asyncrl.wire.access import TOKEN_VARIABLE, own_token

HELP = (
    "Start a rollout server on this machine for a run on another one, with the run's own settings. Recipe "
    "and base model are fetched from the run's controller, which needs cluster.shared_disk=false, an address "
    "that this machine reaches, and serving.api_key_variable. That key is read from the environment variable "
    f"{TOKEN_VARIABLE} here. Where the run was started, `asyncrl servers RUN add URL` then adds the server. "
    "Ctrl-C ends it."
)
EXAMPLES = (
    "asyncrl serve http://10.0.0.5:4711",
    "asyncrl serve http://10.0.0.5:4711 --address 10.0.0.7 --port 30000",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "controller", help="the URL in the run's controller.url, such as http://10.0.0.5:4711"
    )
    parser.add_argument(
        "--address", help="address to listen on; default: this machine's address on its way to other networks"
    )
    parser.add_argument(
        "--port", type=whole(0, 65535), default=0, help="port to listen on; default: a free one"
    )


def run(arguments: argparse.Namespace) -> int:
    """1 when the server cannot be kept alive. Raises InputError when it cannot be started as asked."""
    warn_on_stderr()
    key = own_token()
    if not key:
        raise InputError(
            f"{TOKEN_VARIABLE} is not set. Set it to the key that serving.api_key_variable of the run "
            f"names: the server requires it of its clients and sends it to the controller."
        )
    server = fetch_server(arguments.controller, key, address=_address(arguments), port=arguments.port)
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as logs:
        try:
            asyncio.run(serve(server, Path(logs), ready=_say))
        except ServerError as error:
            return say_failure(error)
    return 0


def _address(arguments: argparse.Namespace) -> str:
    """Raises InputError where no other machine would reach the server."""
    address: str = arguments.address or outward_address()
    if address == LOOPBACK and arguments.address is None:
        raise InputError(
            "this machine has no way to other networks, so its address is not known. Give it with --address."
        )
    return address


def _say(url: str) -> None:
    print(f"ready     {url}; add it where the run was started: asyncrl servers RUN add {url}", flush=True)
