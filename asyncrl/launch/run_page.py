"""The page that a run serves of its runs folder while it trains: `view.port`.

A process of its own, of low priority, that reads files: whatever happens to it, the run does not notice.
"""

import contextlib
import functools
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.launch.servers import check_free
from asyncrl.system.ports import free_ports
from sandbox.process import die_with_parent

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
LOG = "page.log"
LOWER_PRIORITY = 10
"""Added to the niceness: the page waits for the run, never the run for the page."""
STOP_SECONDS = 5.0


@contextlib.contextmanager
def serve_page(folder: Path, port: int | None, *, log_folder: Path) -> Iterator[str | None]:
    """Serves the page of all runs next to `folder` within the block; its address, which is of this machine.

    None, and nothing is served, without a port; also, with a warning, where the port is taken: another run of
    the folder may serve the same page, and no page is worth a run.
    """
    if port is None:
        yield None
        return
    if port:
        try:
            check_free(port, HOST, "view.port")
        except InputError as error:
            log.warning(f"This run serves no page, another run may serve it already: {error}")
            yield None
            return
    chosen = port or free_ports(1)[0]
    command = [sys.executable, "-P", "-m", "asyncrl.cli", "view", os.path.abspath(folder.parent)]
    with (log_folder / LOG).open("ab") as output:
        process = subprocess.Popen(
            [*command, "--port", str(chosen)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for the run, which then ends the page.
            start_new_session=True,
            preexec_fn=functools.partial(_be_modest, os.getpid()),
        )
    try:
        yield f"http://{HOST}:{chosen}/#/{folder.name}"
    finally:
        _stop(process)


def _be_modest(parent: int) -> None:
    os.nice(LOWER_PRIORITY)
    die_with_parent(parent)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
