"""Tests that sometimes fail: rounds of those that start processes or wait, idle or beside busy processes.

    python .make/flakes.py [--rounds 10] [--busy 4] [--all] [pytest's arguments]

Takes the tests marked heavy and those of files that speak of processes, waits or limits of time; "--all"
takes every test. Each failure is a line of .bench/flakes.jsonl. A test that has ended is not run again in its
round, so that a hunt that was stopped continues; remove .bench/flakes* to begin another. The last lines say
how often each test has failed; exit code 1 where one has.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WAITS = re.compile(r"subprocess|Popen|Process|Thread|sleep\(|wait|timeout|deadline|monotonic|_seconds")
ROUND = "ASYNCRL_FLAKES_ROUND"
"""For a process that is pytest, with this file as a plugin: the arguments of its `Round`, as JSON."""


class Record:
    """Tests that have ended and those of them that failed, of one round or of all."""

    def __init__(self, folder: Path) -> None:
        self._failures, self._ended = folder / "flakes.jsonl", folder / "flakes.ended"
        folder.mkdir(parents=True, exist_ok=True)

    def fail(self, test: str, mode: str, number: int, text: str) -> None:
        line = {"test": test, "mode": mode, "round": number, "text": text[-4000:]}
        _append(self._failures, json.dumps(line))

    def end(self, test: str, mode: str, number: int) -> None:
        _append(self._ended, f"{mode} {number} {test}")

    def ended(self, mode: str, number: int) -> set[str]:
        begin = f"{mode} {number} "
        return {line.removeprefix(begin) for line in _lines(self._ended) if line.startswith(begin)}

    def counts(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Tests that ended by mode; runs that failed by mode and test."""
        rows = map(json.loads, _lines(self._failures))
        failed = {(row["mode"], row["test"], row["round"]) for row in rows}
        runs = Counter(line.partition(" ")[0] for line in _lines(self._ended))
        return runs, Counter((mode, test) for mode, test, _ in failed)


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class Round:
    """Plugin of one round of pytest."""

    def __init__(self, folder: Path, mode: str, number: int, takes_all: bool) -> None:
        self.record, self.mode, self.number, self.takes_all = Record(folder), mode, number, takes_all

    def pytest_collection_modifyitems(self, items: list[Any], config: Any) -> None:
        ended = self.record.ended(self.mode, self.number)
        kept = [item for item in items if item.nodeid not in ended and (self.takes_all or waits(item))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

    def pytest_runtest_logreport(self, report: Any) -> None:
        # The process that deals tests out gets every report.
        if "PYTEST_XDIST_WORKER" in os.environ:
            return
        if report.failed:
            self.record.fail(report.nodeid, self.mode, self.number, f"{report.when}: {report.longreprtext}")
        if report.when == "teardown":
            self.record.end(report.nodeid, self.mode, self.number)


def waits(item: Any) -> bool:
    return item.get_closest_marker("heavy") is not None or WAITS.search(item.path.read_text()) is not None


def pytest_configure(config: Any) -> None:
    folder, *settings = json.loads(os.environ[ROUND])
    config.pluginmanager.register(Round(Path(folder), *settings))


@contextlib.contextmanager
def busy(num: int) -> Iterator[None]:
    """That many processes that keep a core busy, while this one lives."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(1000000))"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(num)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    if ROUND in os.environ:
        # Last, and so for pytest's own processes: "site" here is not Python's.
        sys.path.append(sys.path.pop(0))
        return int(pytest.main(sys.argv[1:]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside the tests (default: 0)")
    parser.add_argument("--all", action="store_true", help="every test, not only those that wait")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench")
    given, arguments = parser.parse_known_args()
    folder = given.folder.absolute()
    mode = f"busy-{given.busy}" if given.busy else "idle"
    if not any(word.startswith(("-n", "-m")) for word in arguments):
        arguments = ["-n", "2", "-m", "not slow and not exhaustive and not gpu", *arguments]
    with busy(given.busy):
        for number in range(1, given.rounds + 1):
            # A hunt that a process of tests starts is not one of its processes.
            outer = {name: value for name, value in os.environ.items() if "XDIST" not in name}
            environment = {**outer, ROUND: json.dumps([str(folder), mode, number, given.all])}
            print(f"== {mode}, round {number} of {given.rounds}", flush=True)
            command = [sys.executable, __file__, "-p", "flakes", "-q", *arguments]
            # 1: tests failed; 5: all of this round have ended before.
            if (code := subprocess.run(command, env=environment).returncode) not in (0, 1, 5):
                return code
    runs, failed = Record(folder).counts()
    print(", ".join(f"{num} runs of tests {mode}" for mode, num in sorted(runs.items())) or "no runs")
    for (mode, test), num in failed.most_common():
        print(f"{num} x {mode}: {test}")
    print(f"{failed.total()} failed; their output is in {folder / 'flakes.jsonl'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
