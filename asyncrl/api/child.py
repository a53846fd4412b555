"""`python -m asyncrl.api.child PARENT REFUSAL train ...`: the command line as a child of a script or a
notebook.

What it refuses goes to the file REFUSAL, too. A PARENT that is not 0 is the process without which it shall
not go on: when that is gone, by whatever signal, the run stops as by Ctrl-C.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from asyncrl import cli
from asyncrl.errors import InputError
from asyncrl.system.whole_file import write_whole

LOOKS_SECONDS = 0.5


def main(words: list[str]) -> int:
    parent, refusal = int(words[0]), Path(words[1])
    if parent:
        threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()

    def refuse(error: InputError) -> None:
        cli.print_refusal(error)
        write_whole(refusal, str(error))

    return cli.main(words[2:], refuse=refuse)


def _end_with(parent: int) -> None:
    # Not the kernel's signal on a parent's death: that is of the thread that started this process.
    while os.getppid() == parent:
        threading.Event().wait(LOOKS_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
