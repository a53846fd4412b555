"""Starts an agent's program with limits: `python -m asyncrl.rollout.agents.confined SETTINGS PROGRAM ...`.

It dies with the process that started it, has a bound on the memory of each of its processes and, where the
kernel has Landlock, reads no file of the run and its data, nor another process's memory and environment.
Network it keeps: it must reach the model.
"""

import contextlib
import errno
import json
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

from sandbox import kernel, landlock
from sandbox.kernel import die_with_parent, no_core_file

CANNOT_START = 127
"""Exit code where the program cannot be started, as a shell has it."""


def settings(*, parent: int, memory_bytes: int, hidden: list[str]) -> str:
    """The first argument. `hidden`: files and folders that the program must not read."""
    return json.dumps([parent, memory_bytes, hidden])


def confine(hidden: Iterable[str]) -> None:
    """Takes files and folders from this process for good, and the processes that it does not start."""
    if landlock.abi() >= landlock.LEAST_ABI:
        # With root's, the environment of each process can be read, Landlock or not.
        with contextlib.suppress(PermissionError):
            kernel.bound_capabilities(())
        kernel.set_capabilities(())
        landlock.hide(Path(path) for path in hidden)


def main() -> None:
    parent, memory_bytes, hidden = json.loads(sys.argv[1])
    arguments = sys.argv[2:]
    die_with_parent(parent)
    no_core_file()
    # Not the address space: runtimes such as Node's reserve far more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    confine(hidden)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        print(f"{arguments[0]} cannot be started: {os.strerror(error.errno or errno.EIO)}", file=sys.stderr)
        sys.exit(CANNOT_START)


if __name__ == "__main__":
    main()
