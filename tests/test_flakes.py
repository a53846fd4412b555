"""`.make/flakes.py` finds a test that fails sometimes, and continues a hunt that was stopped."""

import json
import subprocess
import sys
from pathlib import Path

FLAKES = Path(__file__).parents[1] / ".make" / "flakes.py"
TESTS = """
from pathlib import Path

def test_every_second_time():
    runs = Path(__file__).with_name("runs")  # where a subprocess would leave it
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) % 2, "an even run"

def test_always(): pass
"""


def hunt(folder: Path, *words: str) -> tuple[int, list[str]]:
    command = [sys.executable, str(FLAKES), "--folder", str(folder / "record"), *words]
    done = subprocess.run(
        [*command, "-n", "0", "-c", "pytest.ini"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout.splitlines()


def test_a_flake_is_counted_and_a_stopped_hunt_continues(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = heavy\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_pure.py").write_text("def test_pure(): pass")
    flake = "test_it.py::test_every_second_time"
    code, said = hunt(tmp_path, "--rounds=1", "--busy=1")
    assert code == 0 and said[-2] == "2 runs of tests busy-1"
    # Of the first round only what does not wait is left.
    code, said = hunt(tmp_path, "--rounds=2", "--busy=1", "--all")
    assert code == 1 and said[-3:-1] == ["6 runs of tests busy-1", f"1 x busy-1: {flake}"]
    (failure,) = map(json.loads, (tmp_path / "record" / "flakes.jsonl").read_text().splitlines())
    assert (failure["test"], failure["round"]) == (flake, 2) and "an even run" in failure["text"]
