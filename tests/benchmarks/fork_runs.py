"""The limit that no sandbox can pass: a program run in plain forks of a small interpreter, with no isolation
at all."""

import os
import sys
import time

SOURCE = "a, b = map(int, input().split())\nprint(a + b)\n"


def run() -> None:
    """One run: a fork, pipes, the program, its output."""
    out_read, out_write = os.pipe()
    stdin = os.memfd_create("stdin")
    os.write(stdin, b"3 4\n")
    os.lseek(stdin, 0, os.SEEK_SET)
    pid = os.fork()
    if pid == 0:
        os.dup2(stdin, 0)
        os.dup2(out_write, 1)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        exec(compile(SOURCE, "main.py", "exec"), {})
        sys.stdout.flush()
        os._exit(0)
    os.close(out_write)
    os.close(stdin)
    with open(out_read, "rb") as file:
        assert file.read() == b"7\n"
    os.waitpid(pid, 0)


def rate(seconds: float) -> float:
    """Runs per second of this process."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        run()
        count += 1
    return count / (time.perf_counter() - started)


def median_seconds(runs: int) -> float:
    """Median time of one run."""
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return sorted(found)[runs // 2]


if __name__ == "__main__":
    what, argument = sys.argv[1], sys.argv[2]
    print(rate(float(argument)) if what == "rate" else median_seconds(int(argument)))
