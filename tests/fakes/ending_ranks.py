"""Runs each code in a process of its own, whose standard error is a file, and prints the exit codes.

    python -m fakes.ending_ranks JOBS

JOBS is a JSON list of [code, file]. The code finds what is imported here.
"""

import contextlib
import json
import os
import sys

from asyncrl.errors import DiskError, Diverged, InputError
from asyncrl.trainer.bootstrap import end_on_full_disk, run_rank

__all__ = ["DiskError", "Diverged", "InputError", "contextlib", "end_on_full_disk", "run_rank", "sys"]


def main() -> None:
    codes = []
    for code, file in json.loads(sys.argv[1]):
        if os.fork() == 0:
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 2)
            exec(code, {"__name__": "rank"})
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
    print(*codes)


if __name__ == "__main__":
    main()
