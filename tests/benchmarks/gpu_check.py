"""Everything that a machine with GPUs can tell about asyncrl, in one command: `make gpu-check`.

    python tests/benchmarks/gpu_check.py [--folder .bench/gpu-check] [--parts tests,run]

Runs one part after the other, each as a process of its own, also after one that failed: the tests marked gpu
(parity with transformers, digests of SGLang), training throughput, MFU, memory and attention operators of two
Qwen3 shapes, and a short run in bfloat16 on a real server, which shares the GPU where there is one alone
(mismatch of the engines at lag 0, publish time). Writes FOLDER/result.json and FOLDER/page.md. Exit code 0
when all parts worked, 1 when one did not, 2 without a GPU.
"""

import argparse
import dataclasses
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from asyncrl.errors import InputError
from asyncrl.observe.metrics.metrics_file import written_rows
from asyncrl.system.gpus import Gpu, find_gpus
from asyncrl.system.machine import torch_is_cpu_build

ROOT = Path(__file__).parents[2]
PART_SECONDS = 1200
LAST_LINES = 15
RUN_STEPS = 10

Figures = dict[str, str | float]
"""What a part found, by name."""


@dataclass(frozen=True)
class Part:
    name: str
    command: Sequence[str]
    """After the interpreter."""
    read: Callable[[], Figures]
    """Called when the command ended well; raises ValueError where it shows that nothing was measured."""


@dataclass(frozen=True)
class Outcome:
    name: str
    status: str
    """ok or failed."""
    seconds: float
    figures: Figures
    detail: str = ""
    """Why, with the last lines of what it printed."""


def parts_of(folder: Path, num_gpus: int) -> list[Part]:
    junit, run = folder / "tests.xml", folder / "run"
    # Packages that only such a machine has may warn.
    tests = ["-m", "pytest", "-q", "-W", "default", "-m", "gpu", "tests/gpu", f"--junitxml={junit}"]
    training = ["-m", "asyncrl.cli", "train", "recipes/r1_zero_arithmetic_cpu.yaml", f"run_folder={run}"]
    training += ["placement.device=gpu", "model.dtype=bfloat16", f"trainer.num_steps={RUN_STEPS}"]
    training += ["evaluation.every_steps=0", "evaluation.num_tasks=16"]
    if num_gpus == 1:
        training += ["placement.colocated=true", "serving.max_total_tokens=65536"]
    return [
        *(throughput(model, folder / f"throughput-{model}.json") for model in ("0.6b", "1.7b")),
        Part("tests", tests, lambda: read_tests(junit)),
        Part("run", training, lambda: read_run(run / "metrics.jsonl")),
    ]


def throughput(model: str, result: Path) -> Part:
    command = ["tests/benchmarks/gpu_throughput.py", "--model", model, "--json", str(result)]
    return Part(f"throughput {model}", command, lambda: json.loads(result.read_text()))


def read_tests(junit: Path) -> Figures:
    """Numbers of tests. Raises ValueError where none ran: all skipped is no success."""
    suite = next(ElementTree.parse(junit).getroot().iter("testsuite"))
    total, skipped = int(suite.get("tests", "0")), int(suite.get("skipped", "0"))
    if total == skipped:
        raise ValueError(f"{total} tests, {skipped} of them skipped: torch sees no GPU")
    return {"passed": total - skipped, "skipped": skipped}


def read_run(metrics: Path) -> Figures:
    """Medians over steps. Raises ValueError where the run trained none."""
    rows = written_rows(metrics)
    steps = [row for row in rows if row.get("kind") == "step"]
    if not steps:
        raise ValueError("the run trained no step")
    figures: Figures = {"steps": len(steps)}
    for name in ("mismatch_kl", "publish_seconds", "train_seconds", "wait_seconds"):
        values = [row[name] for row in steps if row.get(name) is not None]
        if values:
            figures[f"median {name}"] = statistics.median(values)
    return figures


def chosen(parts: Sequence[Part], names: str | None) -> Sequence[Part]:
    """Those that --parts names; all without it. Raises InputError at an unknown name."""
    if names is None:
        return parts
    asked, known = names.split(","), [part.name for part in parts]
    if unknown := [name for name in asked if name not in known]:
        raise InputError(f"--parts names {', '.join(unknown)}, but the parts are {', '.join(known)}.")
    return [part for part in parts if part.name in asked]


def carry_out(part: Part, folder: Path) -> Outcome:
    begin, log = time.perf_counter(), folder / f"{part.name.replace(' ', '-')}.log"
    try:
        with log.open("w") as output:
            code = ended_in_time([sys.executable, *part.command], output)
        if code:
            raise ValueError(f"exit code {code}")
        figures, failure = part.read(), ""
    except subprocess.TimeoutExpired:
        figures, failure = {}, f"not done after {PART_SECONDS} s"
    except (ValueError, OSError, ElementTree.ParseError) as error:
        figures, failure = {}, str(error)
    if failure:
        failure += "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
    return Outcome(
        part.name, "failed" if failure else "ok", time.perf_counter() - begin, figures, failure.strip()
    )


def ended_in_time(command: Sequence[str], output: IO[str]) -> int:
    """The exit code. Raises TimeoutExpired after PART_SECONDS; nothing is left on the GPU for later parts."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            return process.wait(PART_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def page(machine: Figures, outcomes: Sequence[Outcome]) -> str:
    """The result as Markdown."""
    lines = ["# GPU check", "", *(f"- {name}: {value}" for name, value in machine.items()), ""]
    for outcome in outcomes:
        lines += [f"## {outcome.name}: {outcome.status}", ""]
        if outcome.figures:
            lines += ["| what | value |", "|---|---|"]
            lines += [f"| {name} | {shown(value)} |" for name, value in outcome.figures.items()]
            lines.append("")
        if outcome.detail:
            lines += ["```", outcome.detail, "```", ""]
    return "\n".join(lines)


def shown(value: str | float) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def describe(gpus: Sequence[Gpu]) -> Figures:
    from importlib.metadata import version

    names = {name: version(name) for name in ("torch", "sglang", "megatron-core")}
    kinds = ", ".join(gpu.name for gpu in gpus)
    return {"GPUs": kinds, "Python": platform.python_version(), **names}


def check_all(parts: Sequence[Part], gpus: Sequence[Gpu], folder: Path) -> int:
    """Exit code: 0 when no part failed. Both files are there after each part, in case a later one hangs."""
    folder.mkdir(parents=True, exist_ok=True)
    machine, outcomes = describe(gpus), []
    for part in parts:
        print(f"{part.name} ...", flush=True)
        outcomes.append(carry_out(part, folder))
        print(f"{part.name}: {outcomes[-1].status}, {outcomes[-1].seconds:.0f} s", flush=True)
        result = {"machine": machine, "parts": [dataclasses.asdict(outcome) for outcome in outcomes]}
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        (folder / "page.md").write_text(page(machine, outcomes))
    print(f"\n{page(machine, outcomes)}\n{folder}/result.json, {folder}/page.md")
    return int(any(outcome.status == "failed" for outcome in outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench" / "gpu-check")
    parser.add_argument("--parts", help="names of parts, with commas between; default: all")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    try:
        gpus = find_gpus()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if not gpus or torch_is_cpu_build():
        why = "torch is a build for CPUs: make setup GPU=1" if gpus else "none is visible"
        print(f"make gpu-check needs an NVIDIA GPU that torch can use, but {why}.", file=sys.stderr)
        return 2
    try:
        parts = chosen(parts_of(folder, len(gpus)), arguments.parts)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return check_all(parts, gpus, folder)


if __name__ == "__main__":
    sys.exit(main())
