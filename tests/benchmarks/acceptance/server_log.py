"""Facts that a server's log has and its answers do not."""

from pathlib import Path

GRAPHS = ("decode CUDA graph begin", "prefill CUDA graph begin")
GIVES, TAKES = "POST /release_memory_occupation", "POST /resume_memory_occupation"


def graphs_in(log: str) -> list[str]:
    """The kinds of passes for which it captured CUDA graphs."""
    return [kind.partition(" ")[0] for kind in GRAPHS if kind in log]


def num_calls(logs: Path, call: str) -> int:
    """Successful requests, in the logs of all servers of a run."""
    lines = [
        line for log in logs.glob("server-*.log") for line in log.read_text(errors="replace").splitlines()
    ]
    return sum(call in line and " 200 " in f"{line} " for line in lines)
