"""A process that hides files from itself: the rights that it loses and keeps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import landlock

pytestmark = pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="needs Landlock")
ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
from pathlib import Path
from sandbox import landlock

folder, parent = Path(sys.argv[1]), int(sys.argv[2])
landlock.hide([folder / "run", folder / "gold.jsonl"])

def tried(what, *arguments):
    try:
        return repr(what(*arguments))
    except OSError as error:
        return type(error).__name__

print(tried((folder / "own.txt").read_text))
print(tried((folder / "own.txt").write_text, "changed"))
print(tried((folder / "beside" / "new.txt").write_text, "new"))
print(tried((folder / "gold.jsonl").read_text))
print(tried((folder / "run" / "deep" / "journal").read_text))
print(tried((folder / "link").read_text))
print(tried((folder / "run" / "new").write_text, "x"))
print(tried((folder / "new.txt").write_text, "x"))
print(sorted(os.listdir(folder)))
print(tried(Path(f"/proc/{parent}/root{folder}/gold.jsonl").read_text))
print(tried(os.kill, parent, 0))
print(tried(Path(f"/proc/{parent}/environ").read_bytes))
print(tried(Path("/proc/self/environ").read_bytes) != "PermissionError")
"""


def test_hidden_files_are_out_of_reach_by_every_path_and_their_neighbours_are_not(tmp_path: Path) -> None:
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    for name in ("own.txt", "gold.jsonl", "run/deep/journal"):
        (tmp_path / name).write_text("read")
    (tmp_path / "link").symlink_to(tmp_path / "gold.jsonl")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(os.getpid())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    signals = "PermissionError" if landlock.abi() >= landlock.SIGNALS_ABI else "None"
    denied = "PermissionError"
    assert done.stdout.splitlines() == [
        *("'read'", "7", "3"),
        *(denied, denied, denied, denied),
        # Landlock knows no "all but": what is made later beside the hidden ones is taken, too.
        denied,
        str(["beside", "gold.jsonl", "link", "own.txt", "run"]),
        *(denied, signals, denied, "True"),
    ]
