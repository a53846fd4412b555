"""Rows that reasoning-gym makes: each made once, by processes of their own, and kept in a file.

Making 20,000 tasks may take minutes, and the package seconds to import. What decides about the rows (dataset,
configuration, seed, size, version of the package) names the file, and is the data's digest in a run."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.data.files import PublishedRow
from asyncrl.data.gym_process import REFUSED, UNMADE, Request
from asyncrl.errors import InputError
from asyncrl.recipe import Data, Evaluation, Source
from asyncrl.recipe.sections.section import GYM_ROWS, marked, value_at
from asyncrl.system.places import cache_folder
from sandbox.cgroup import available_cores
from verifiers.gym import installed_version

_TASKS_PER_PROCESS = 250
_MAX_PROCESSES = 8
_FORMAT = 1
"""Format of the rows, which tells the files of an older asyncrl apart."""


def gym_digest(source: Source, key: str) -> str:
    """SHA-256 of what decides about the rows. Raises InputError when reasoning-gym is not installed."""
    try:
        version = installed_version()
    except ValueError as error:
        raise InputError(f'{key} has the gym "{source.gym}", but {error}') from None
    decides = [_FORMAT, version, *(value_at(source, key) for key in marked(Source, GYM_ROWS))]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def check_gyms(data: Data, evaluation: Evaluation) -> None:
    """Raises InputError where a recipe has a gym and reasoning-gym is not installed: minutes of preparing
    come before the rows are read."""
    named = [("data.train", data.train_sources()), ("data.heldout", data.heldout_sources())]
    named += [(f"evaluation.sets {each.title()}", each.heldout_sources()) for each in evaluation.sets]
    for key, sources in named:
        for source in sources:
            if source.gym is not None:
                gym_digest(source, key)


def gym_rows(source: Source, key: str) -> Iterator[PublishedRow]:
    """The rows of a gym, made first where no file has them. Raises InputError."""
    file = cache_folder("gym") / f"{source.gym}-{gym_digest(source, key)[:16]}.jsonl"
    if not file.is_file():
        _make(source, key, file)
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"gym {source.gym}, task {number} (seed {(source.seed or 0) + number - 1})"
            made: dict[str, Any] = json.loads(line)
            if source.options is not None and "verifier" in made:
                made["verifier"] = {"name": made["verifier"], "options": source.options}
            yield PublishedRow(where, number, made)


def gym_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a gym's row. Raises ValueError where reasoning-gym could not make the task."""
    if UNMADE in row:
        raise ValueError(f"reasoning-gym makes no task of it: {row[UNMADE]}")
    return dict(row)


def _make(source: Source, key: str, file: Path) -> None:
    """Writes all rows to `file`, or nothing."""
    assert source.gym is not None and source.size is not None and source.seed is not None
    print(f"Making {source.size} tasks of gym {source.gym}, to be kept in {file.parent} ...", file=sys.stderr)
    file.parent.mkdir(parents=True, exist_ok=True)
    num = max(1, min(available_cores(), _MAX_PROCESSES, source.size // _TASKS_PER_PROCESS))
    bounds = [source.size * part // num for part in range(num + 1)]
    config = source.config if isinstance(source.config, dict) else {}
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        parts = [Path(folder) / f"{part}.jsonl" for part in range(num)]
        requests = [
            Request(source.gym, config, source.seed, source.size, bounds[part], bounds[part + 1])
            for part in range(num)
        ]
        program = [sys.executable, "-P", "-m", "asyncrl.data.gym_process"]
        commands = [[*program, made.to_json(), str(part)] for made, part in zip(requests, parts, strict=True)]
        _run(commands, source, key)
        whole = Path(folder) / "all.jsonl"
        with whole.open("wb") as stream:
            for part in parts:
                stream.write(part.read_bytes())
        whole.replace(file)


def _run(commands: list[list[str]], source: Source, key: str) -> None:
    """Runs them side by side. Raises InputError with what the first one that fails says."""
    root = str(Path(__file__).resolve().parents[2])
    # A fixed seed of hashes: a dataset that walks over a set makes the same tasks in every process.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )  # fmt: skip
            )
        for process in processes:
            _, said = process.communicate()
            if process.returncode:
                refused = process.returncode == REFUSED
                words = said.strip() if refused else f"it cannot be made: {said.strip()[-2000:]}"
                raise InputError(f'{key} has the gym "{source.gym}": {words}')
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
