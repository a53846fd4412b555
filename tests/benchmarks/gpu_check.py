"""Whether this machine with GPUs can be trusted, in at most 23 minutes and one table: `make gpu-check`.

    python tests/benchmarks/gpu_check.py [--piece N | --parts engine,kill] [--folder FOLDER] [--model FOLDER]
                                         [--minutes N] [--device cpu]

Each part is a process with a time limit (tests/benchmarks/acceptance/parts.py); one that fails or is late
stops no other. FOLDER/page.md has the table, with a sentence on what to do for each row that failed, and is
written after each part; FOLDER/result.json has the same for programs. With --piece or --parts rows of other
parts stay in it: pieces, of at most nine minutes each, make one table in the end. --model names a folder with
weights for the real run, which else has random ones. --device cpu rehearses all of it that a CPU can do, with
small models. Exit code 0 when every row passed, 1 when one did not, 2 without a GPU.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.errors import InputError
from asyncrl.system.gpus import find_gpus
from asyncrl.system.machine import torch_is_cpu_build
from tests.benchmarks.acceptance.checks import FAIL, NOT_RUN, Row, read_rows
from tests.benchmarks.acceptance.parts import PARTS, Part, minutes_of, pieces
from tests.benchmarks.acceptance.processes import ROOT, last_lines, run_in_time
from tests.benchmarks.acceptance.table import page, summary

LAST_LINES = 15
SHORTEST_SECONDS = 30.0
"""A part that has less time left does not begin."""
SLOWER = 20.0
"""How much longer a part may take on a CPU, which others may be using."""
PACKAGES = ("torch", "sglang", "megatron-core", "transformer-engine", "flash-attn", "apex")


class Acceptance:
    """The parts that were asked for, on one device."""

    def __init__(
        self, parts: Sequence[Part], folder: Path, *, device: str, num_gpus: int, model: Path | None
    ) -> None:
        self.folder = folder
        self._parts = parts
        self.rows = earlier_rows(folder, parts)
        self._device = device
        self._options = ["--device", device, "--num-gpus", str(num_gpus)]
        self._options += [] if model is None else ["--model", str(model)]
        self._machine = describe(device)
        self._details: dict[str, str] = {}
        self._began = time.monotonic()

    def run(self, *, seconds: float) -> int:
        """The exit code; parts share `seconds`, which a rehearsal does not count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in self._parts:
            left = seconds - (time.monotonic() - self._began) if self._device == "gpu" else float("inf")
            if part.gpu_only and self._device != "gpu":
                self._add(part, Row(part.about, NOT_RUN, "needs a GPU", ""))
            elif left < SHORTEST_SECONDS:
                advice = f"Repeat with ARGS='--parts {part.name}'."
                self._add(part, Row(part.about, NOT_RUN, f"{seconds / 60:.0f} minutes are over", advice))
            else:
                self._run_part(part, left)
            self._write()
        print(f"\n{self._page()}\n{self.folder}/page.md, {self.folder}/result.json", flush=True)
        failed = any(row.verdict == FAIL or (row.verdict == NOT_RUN and row.advice) for _, row in self.rows)
        return int(failed)

    def _run_part(self, part: Part, left: float) -> None:
        limit = min(left, part.limit_seconds) if self._device == "gpu" else SLOWER * part.limit_seconds
        print(f"== {part.name}: {part.about} (at most {limit:.0f} s)", flush=True)
        rows, log, told = self.folder / f"{part.name}.jsonl", self.folder / f"{part.name}.log", 0
        rows.unlink(missing_ok=True)

        def look() -> None:
            nonlocal told
            for row in read_rows(rows)[told:]:
                print(f"   {row.verdict:8s} {row.what}: {row.figure}", flush=True)
                told += 1

        command = ["-m", f"tests.benchmarks.acceptance.{part.name}", *self._options]
        command += ["--folder", str(self.fresh_folder(part)), "--rows", str(rows)]
        ended = run_in_time(
            command,
            log,
            limit_seconds=limit,
            on_gpu=self._device == "gpu",
            look=look,
            tell=lambda line: print(f"   ... {line[:120]}", flush=True),
        )
        self.rows += [(part.name, row) for row in read_rows(rows)]
        found = [row for name, row in self.rows if name == part.name]
        if ended.code is None:
            advice = f"Read {log.name}, then repeat with ARGS='--parts {part.name}'."
            self._add(part, Row(part.about, FAIL, f"not done after {limit:.0f} s", advice))
        elif not found or (ended.code and not any(row.verdict == FAIL for row in found)):
            words = f"it ended with {ended.code}: {last_lines(log, 1)[:200]}"
            self._add(part, Row(part.about, FAIL, words, f"Read {log.name}: the part itself broke."))
        if any(row.verdict == FAIL for name, row in self.rows if name == part.name):
            self._details[part.name] = last_lines(log, LAST_LINES)
        print(f"   {part.name} took {ended.seconds:.0f} s", flush=True)

    def fresh_folder(self, part: Part) -> Path:
        """FOLDER/PART, or one beside it where an earlier check left its files: nothing is deleted."""
        for number in range(1, 1000):
            folder = self.folder / (part.name if number == 1 else f"{part.name}-{number}")
            if not folder.exists():
                return folder
        raise InputError(f"{self.folder} has a thousand checks already. Name another one with --folder.")

    def _add(self, part: Part, row: Row) -> None:
        self.rows.append((part.name, row))
        print(f"   {row.verdict:8s} {part.name}: {row.figure}", flush=True)

    def _page(self) -> str:
        return page(self._machine, self.rows, self._details, time.monotonic() - self._began)

    def _write(self) -> None:
        (self.folder / "page.md").write_text(self._page() + "\n")
        seconds = time.monotonic() - self._began
        result = {
            "machine": self._machine,
            "summary": summary(self.rows, seconds),
            "rows": [{"part": part, **asdict(row)} for part, row in self.rows],
        }
        (self.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")


def earlier_rows(folder: Path, parts: Sequence[Part]) -> list[tuple[str, Row]]:
    """Rows of parts other than `parts` that FOLDER/result.json has."""
    path, own = folder / "result.json", {part.name for part in parts}
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    return [(row.pop("part"), Row(**row)) for row in rows if row["part"] not in own]


def describe(device: str) -> dict[str, str]:
    kinds = ", ".join(gpu.name for gpu in find_gpus()) if device == "gpu" else "none: a rehearsal on the CPU"
    return {
        "GPUs": kinds,
        "Python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
    }


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def chosen(names: str | None, piece: int | None = None) -> list[Part]:
    """Those of --piece, or that --parts names, in their order; all without. Raises InputError at an unknown
    one."""
    if piece is not None:
        found = pieces()
        if not 1 <= piece <= len(found):
            raise InputError(f"--piece is {piece}, but the pieces are 1 to {len(found)}.")
        return found[piece - 1]
    if names is None:
        return list(PARTS)
    asked, known = names.split(","), [part.name for part in PARTS]
    if unknown := [name for name in asked if name not in known]:
        raise InputError(f"--parts names {', '.join(unknown)}, but the parts are {', '.join(known)}.")
    return [part for part in PARTS if part.name in asked]


def check_gpus(device: str) -> int:
    """How many GPUs there are. Raises InputError where the check is for one that torch cannot use."""
    if device != "gpu":
        return 0
    gpus = find_gpus()
    if not gpus or torch_is_cpu_build():
        why = "torch is a build for CPUs: make setup GPU=1" if gpus else "none is visible"
        raise InputError(f"make gpu-check needs an NVIDIA GPU that torch can use, but {why}.")
    return len(gpus)


def check_model(model: Path | None) -> Path | None:
    if model is not None and not (model / "config.json").is_file():
        raise InputError(f"--model is {model}, which is not a folder with a config.json.")
    return None if model is None else model.absolute()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench" / "gpu-check")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--parts", help="names of parts, with commas between; default: all")
    some.add_argument("--piece", type=int, metavar="N", help="the N-th piece, of at most nine minutes")
    parser.add_argument("--model", type=Path, help="folder of the real run's model; default: random weights")
    parser.add_argument(
        "--minutes", type=float, help="for all parts together; default: the sum of their limits"
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: a rehearsal")
    arguments = parser.parse_args()
    try:
        parts, model = chosen(arguments.parts, arguments.piece), check_model(arguments.model)
        num_gpus = check_gpus(arguments.device)
        acceptance = Acceptance(
            parts, arguments.folder.absolute(), device=arguments.device, num_gpus=num_gpus, model=model
        )
        return acceptance.run(seconds=60 * (arguments.minutes or minutes_of(parts)))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
