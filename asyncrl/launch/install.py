"""`make setup`'s installer: pip with a progress bar, and its last lines when it fails. Standard library only.

Run by path with the environment's own interpreter, before asyncrl itself is installed:
    python asyncrl/launch/install.py "2/3 packages" 112 --no-deps -r cpu.lock
"""

import os
import subprocess
import sys
from collections.abc import Iterator

WIDTH = 30
LAST_LINES = 25


def main() -> int:
    """Exit code of pip."""
    name, total, *arguments = sys.argv[1:]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    lines: list[str] = []
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for done in _count_packages(process.stdout, lines):
            _show(name, min(done, int(total)), int(total))
    if process.returncode == 0:
        _done(name, int(total))
    else:
        print("\n".join(["", *lines[-LAST_LINES:]]), file=sys.stderr)
    return process.returncode


def _count_packages(output: Iterator[str], lines: list[str]) -> Iterator[int]:
    """Packages found so far; pip names each once before it fetches or skips it."""
    done = 0
    yield done
    for line in output:
        lines.append(line.rstrip())
        if line.startswith(("Collecting ", "Processing ", "Requirement already satisfied", "Obtaining ")):
            done += 1
            yield done


def _show(name: str, done: int, total: int) -> None:
    if sys.stdout.isatty():
        head, count = f"  {name:<14}", f"{done}/{total}"
        # A line that the terminal breaks cannot be drawn over.
        width = max(0, min(WIDTH, (os.get_terminal_size().columns or 80) - len(head) - len(count) - 5))
        bar = "#" * (width * done // total)
        print(f"\r{head} [{bar:<{width}}] {count}", end="", flush=True)


def _done(name: str, total: int) -> None:
    _show(name, total, total)
    print("" if sys.stdout.isatty() else f"  {name:<14} {total}/{total}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
