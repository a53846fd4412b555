"""`make gpu-check` walks through all of its parts on the CPU, on real servers and trainers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.acceptance.checks import NOT_RUN, PASS
from tests.benchmarks.acceptance.parts import PARTS

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"
ON_CPU = [part.name for part in PARTS if not part.gpu_only]


def rehearse(folder: Path, *words: str) -> tuple[int, list[dict[str, str]], str]:
    """Exit code, rows and everything that it printed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--folder", str(folder), *words],
        # As a shell may have it; packages may lie there.
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, json.loads((folder / "result.json").read_text())["rows"], done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", ON_CPU)
def test_a_part_passes_on_a_machine_that_is_well(part: str, tmp_path: Path) -> None:
    code, rows, said = rehearse(tmp_path, "--parts", part)
    left_out = [row for row in rows if row["verdict"] == NOT_RUN]
    assert all("GPU" in row["figure"] for row in left_out), said
    assert {row["verdict"] for row in rows if row not in left_out} == {PASS}, said
    assert code == 0 and f"| {part} | " in (tmp_path / "page.md").read_text()


@pytest.mark.slow
def test_what_needs_a_gpu_is_said_to_be_left_out(tmp_path: Path) -> None:
    code, rows, said = rehearse(tmp_path, "--parts", "throughput")
    assert (code, rows[0]["verdict"], rows[0]["figure"]) == (0, NOT_RUN, "needs a GPU"), said
