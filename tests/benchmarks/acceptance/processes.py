"""Parts as processes of their own: a time limit, progress while they run, and nothing left on the GPU."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]
MARK = "ASYNCRL_GPU_CHECK"
"""Variable that all processes of a part inherit: servers have sessions of their own, and would outlive it."""
LOOK_SECONDS = 0.5
TELL_SECONDS = 20.0
"""Between two lines of progress."""


@dataclass(frozen=True, slots=True)
class Ended:
    code: int | None
    """None where its time was up."""
    seconds: float


def part_environment(*, on_gpu: bool) -> dict[str, str]:
    """That of this process, with the repository and its tests in front of whatever PYTHONPATH names: packages
    may lie there. A part for the CPU sees no GPU."""
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    hidden = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"} | hidden


def run_in_time(
    command: Sequence[str],
    log: Path,
    *,
    limit_seconds: float,
    on_gpu: bool,
    look: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Ended:
    """Runs `command` after the interpreter until it ends or its time is up; then all that it started is gone.
    `look` is called all the while, `tell` gets its last line now and then."""
    mark, begin, told = uuid.uuid4().hex, time.monotonic(), time.monotonic()
    environment = part_environment(on_gpu=on_gpu) | {MARK: mark}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while (code := process.poll()) is None and time.monotonic() - begin < limit_seconds:
            time.sleep(LOOK_SECONDS)
            look()
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                tell(last_lines(log, 1))
        return Ended(code, time.monotonic() - begin)
    finally:
        kill_marked(mark)
        process.wait()
        look()


def kill_marked(mark: str) -> None:
    """SIGKILL for each process with the mark, again until none is left: one may be starting another."""
    for _ in range(20):
        found = [process for process in psutil.process_iter() if _has_mark(process, mark)]
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if not psutil.wait_procs(found, timeout=5)[0] and not found:
            return


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def last_lines(log: Path, count: int) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])
