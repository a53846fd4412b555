"""From a fresh clone to a trained model: how long each phase takes, with packages in a cache.

    python tests/benchmarks/door_bench.py [--fresh] [--seeds 0,1,2] [--setup-only] [-- TORCH_INDEX=... UV=...]

Clones this checkout's HEAD into a new folder and does there what `make train` does, phase by phase; what
follows `--` is given to make. --fresh begins with empty caches of uv and pip: the difference is what
downloading costs. Prints wall and CPU seconds of each phase. Wall times count only on idle cores: beside them
stands the load.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = "recipes/r1_zero_arithmetic_cpu.yaml"


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Prints the seconds that the block's programs took."""
    wall, cpu = time.monotonic(), _cpu_seconds()
    yield
    wall, cpu = time.monotonic() - wall, _cpu_seconds() - cpu
    load = os.getloadavg()[0]
    print(f"{name:<34} {wall:8.1f} s wall {cpu:8.1f} s CPU   load {load:.1f}", flush=True)


def _cpu_seconds() -> float:
    """CPU time of every process that was started here and has ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: list[str], clone: Path, environment: dict[str, str], log: Path) -> None:
    with open(log, "ab") as output:
        done = subprocess.run(
            command, cwd=clone, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        sys.exit("\n".join([f"{' '.join(command)}: exit code {done.returncode}", *lines[-20:]]))


def moments(folder: Path, began_seconds: float) -> Iterator[str]:
    """Parts of a run that began at `began_seconds`, by its own metrics, and what it learned."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before = began_seconds
    ends = {
        "start": lambda row: row.get("event") == "ready",
        "evaluation before training": lambda row: row.get("when") == "before",
        "steps": lambda row: row["kind"] == "step",
        "evaluation after training": lambda row: row.get("when") == "after",
    }
    for name, is_end in ends.items():
        after = max(row["time_seconds"] for row in rows if is_end(row))
        yield f"  {name:<32} {after - before:8.1f} s wall"
        before = after
    (last,) = (row for row in rows if row.get("when") == "after")
    low, high = last["greedy_low"], last["greedy_high"]
    yield f"  held-out, greedy: {last['greedy_accuracy']:.1%} ({low:.1%}-{high:.1%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--setup-only", action="store_true")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("words", nargs="*", metavar="VARIABLE=VALUE")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="door-"))
    environment = dict(os.environ)
    if arguments.fresh:
        environment |= {"UV_CACHE_DIR": str(scratch / "uv"), "PIP_CACHE_DIR": str(scratch / "pip")}
    clone, log = scratch / "clone", scratch / "log"
    try:
        with phase("all until the first trained model"):
            with phase("clone"):
                run(["git", "clone", "--quiet", str(ROOT), str(clone)], scratch, environment, log)
            with phase("make setup"):
                run(["make", "setup", *arguments.words], clone, environment, log)
            if arguments.setup_only:
                return 0
            first, *others = arguments.seeds.split(",")
            train(first, clone, environment, log)
        for seed in others:
            train(seed, clone, environment, log)
    finally:
        shutil.rmtree(scratch)
    return 0


def train(seed: str, clone: Path, environment: dict[str, str], log: Path) -> None:
    folder = clone / "runs" / f"door_{seed}"
    words = [RECIPE, f"seed={seed}", f"run_folder={folder}"]
    program = [".venv/bin/python", "-P", "-m"]
    if not (clone / ".cache/arithmetic").exists():
        with phase("data and base model"):
            run([*program, "asyncrl.examples.prepare", "--recipe", RECIPE], clone, environment, log)
    began_seconds = time.time()
    with phase(f"asyncrl train, seed {seed}"):
        run([*program, "asyncrl.commands.main", "train", *words], clone, environment, log)
    print(*moments(folder, began_seconds), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
