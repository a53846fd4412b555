"""The words of a trainer rank's log where NCCL's watchdog ended it.

On GPUs no rank waits for another one in Python: a thread of torch sees that a collective takes too long, or
that its peer is gone, and ends the process (SIGABRT) below a long stack of C++.
"""

import re
import signal

NUM_LINES = 400
"""Lines of the log to look at: the stack and the dump of each thread come after the line that says why."""
_TIMED_OUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(.*?OpType=(?P<kind>\w+).*? "
    r"ran for (?P<ms>\d+) milliseconds"
)
_GONE = re.compile(r"ncclRemoteError|remote process exited or there was a network error")
_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) ?s(?:econds)? without making progress")


def nccl_ending(exit_code: int, lines: str) -> str | None:
    """A clause about a rank of this exit code that NCCL ended because of another one; None of any other."""
    if exit_code != -signal.SIGABRT:
        return None
    if found := _TIMED_OUT.search(lines):
        return (
            f"lost another rank: its {found['kind']} had no end after {int(found['ms']) / 1000:.0f} s "
            f"(trainer.rank_timeout_seconds), so another rank died or hangs, or took another path; its own "
            f"log says more. NCCL's watchdog ended this one (SIGABRT)"
        )
    if _GONE.search(lines):
        return (
            "lost another rank: its connection broke, so that rank or its machine is gone; its own log says "
            "more. NCCL's watchdog ended this one (SIGABRT)"
        )
    if found := _STUCK.search(lines):
        return (
            f"hung: its GPU made no progress for {found['seconds']} s, and NCCL's watchdog ended it (SIGABRT)"
        )
    return None
