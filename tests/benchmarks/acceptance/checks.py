"""Results of a part of the acceptance: rows, on disk as soon as each is known, and the arguments of a part.

A part is a program: `python -m tests.benchmarks.acceptance.NAME --device gpu --folder F --rows F/rows.jsonl`.
Whatever ends it later, even its time limit, the rows that it wrote are in the table.
"""

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PASS, FAIL, NOT_RUN = "pass", "FAIL", "not run"
LONGEST_FIGURE = 300


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    what: str
    verdict: str
    """PASS, FAIL or NOT_RUN."""
    figure: str
    """The measurement, or why it failed."""
    advice: str
    """The sentence to act on; empty where it passed."""
    seconds: float = 0.0


@dataclass(slots=True)
class Check:
    """A row in the making."""

    figure: str = ""

    def require(self, is_so: bool, failure: str) -> None:
        """Raises ValueError with the sentence `failure` unless `is_so`."""
        if not is_so:
            raise ValueError(f"{failure}{'; ' if self.figure else ''}{self.figure}")


@dataclass(frozen=True, slots=True)
class Checks:
    """The rows of one part."""

    path: Path

    @contextlib.contextmanager
    def row(self, what: str, advice: str) -> Iterator[Check]:
        """The block passes unless it raises; what it raised is the figure, its traceback goes to the log. The
        next row is tried all the same."""
        check, begin = Check(), time.perf_counter()
        verdict = PASS
        try:
            yield check
        # Whatever went wrong in one row is that row's verdict.
        except Exception as error:
            traceback.print_exc()
            verdict, check.figure = FAIL, f"{type(error).__name__}: {error}"
            if isinstance(error, ValueError):
                check.figure = str(error)
        seconds = time.perf_counter() - begin
        self.add(Row(what, verdict, _short(check.figure), "" if verdict == PASS else advice, seconds))

    def add(self, row: Row) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(f"{row.verdict}: {row.what}: {row.figure}", flush=True)


def _short(figure: str) -> str:
    """The beginning and the end of one that quotes a log: what went wrong is in its last line."""
    words = " ".join(figure.split())
    if len(words) <= LONGEST_FIGURE:
        return words
    return f"{words[: LONGEST_FIGURE // 3]} ... {words[-LONGEST_FIGURE // 2 :]}"


def read_rows(path: Path) -> list[Row]:
    """Those written so far; none of a file that is not there yet."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [Row(**json.loads(line)) for line in whole.splitlines()]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a part computes, and on what."""

    device: str
    """gpu or cpu, as placement.device."""
    folder: Path
    """The part's own."""
    num_gpus: int
    model: Path | None
    """The model of the real run; None for random weights."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "gpu"

    def name_without_second_gpu(self, checks: Checks, what: str) -> bool:
        """Adds a row for `what`, which takes two GPUs, where there are fewer; whether it did."""
        if self.num_gpus > 1:
            return False
        checks.add(Row(what, NOT_RUN, f"needs 2 GPUs, {self.num_gpus} here", ""))
        return True

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.on_gpu else "float32"

    @property
    def mismatch_limit(self) -> float:
        """KL per token between server and trainer, in nats: the alarm's; on a CPU that of float32."""
        return 0.01 if self.on_gpu else 1e-6


def run_part(work: Callable[[Checks, Setting], None]) -> int:
    """The `main` of a part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--num-gpus", type=int, default=0)
    parser.add_argument("--model", type=Path)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    work(Checks(chosen.rows), Setting(chosen.device, chosen.folder, chosen.num_gpus, chosen.model))
    return int(any(row.verdict == FAIL for row in read_rows(chosen.rows)))


def end(work: Callable[[Checks, Setting], None]) -> None:
    sys.exit(run_part(work))
