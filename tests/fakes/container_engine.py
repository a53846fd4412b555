"""A stand-in for podman: a folder per container, and a line for each call in calls.jsonl beside them.

Commands run on this machine, with /work, /tests and /logs of the container in its folder.
"""

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

IMAGES = ("debian:12", "asyncrl-harbor/hello")


def write_engine(folder: Path) -> Path:
    """An executable `podman` of this fake, whose containers are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "podman"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} {folder} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def main(folder: Path, arguments: list[str]) -> int:
    with (folder / "calls.jsonl").open("a") as file:
        file.write(json.dumps(arguments) + "\n")
    match arguments:
        case ["image", "inspect", image]:
            return _known(image)
        case ["run", *options, image]:
            return _run(folder / options[options.index("--name") + 1], image)
        case ["exec", name, *command]:
            return _exec(folder / name, command)
        case ["cp", "-", target]:
            name, _, path = target.partition(":")
            with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as archive:
                archive.extractall(f"{folder / name}{path}", filter="data")
            for script in (folder / name).rglob("*.sh"):
                script.write_text(_here(folder / name, script.read_text()))
            return 0
        case ["cp", source, "-"]:
            name, _, path = source.partition(":")
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(f"{folder / name}{path}", ".")
            sys.stdout.buffer.write(packed.getvalue())
            return 0
        case ["rm", "--force", name]:
            shutil.rmtree(folder / name, ignore_errors=True)
            return 0
    print(f"Error: unknown call {arguments}", file=sys.stderr)
    return 125


def _known(image: str) -> int:
    if image not in IMAGES:
        print(f"Error: no such image {image}", file=sys.stderr)
        return 1
    return 0


def _run(root: Path, image: str) -> int:
    if _known(image):
        return 125
    (root / "work").mkdir(parents=True)
    while line := sys.stdin.buffer.readline():
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    shutil.rmtree(root, ignore_errors=True)
    return 0


def _exec(root: Path, command: list[str]) -> int:
    if not root.is_dir():
        print("Error: no such container", file=sys.stderr)
        return 125
    if command == ["pwd"]:
        print("/work")
        return 0
    if command[-1] == "kill -KILL -1":
        return 0
    here = [_here(root, part) for part in command]
    options: Any = {"cwd": root / "work", "stdin": subprocess.DEVNULL}
    status = subprocess.run(here, **options).returncode
    return status if status >= 0 else 128 - status


def _here(root: Path, text: str) -> str:
    return re.sub(r"(?<![\w./])/(work|tests|logs)\b", rf"{root}/\1", text)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
