"""A script trains by `asyncrl.train`, on real engines: processes and run folder are the command line's."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.base_model import write_base_model
from fakes.processes import is_alive

from asyncrl.journal.conservation import read_conservation
from asyncrl.launch.python.run import Run
from asyncrl.run.status import read_status

SCRIPT = Path(__file__).parents[1] / "fakes" / "python_caller.py"
LONG = 100_000
"""Steps of a run that is stopped."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    write_base_model(folder / "model")
    return folder


def call(folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", str(SCRIPT), str(folder), json.dumps(settings)]
    return subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)


def ended(run: Run) -> str:
    """The state of a run of no process of ours, once its process is gone: it holds its folder while it writes
    its report, which comes after the state."""
    status = read_status(run.folder)
    assert status is not None
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(status["pid"])
        while is_alive(process):
            time.sleep(0.2)
    return run.state


@pytest.mark.exhaustive
def test_leaving_the_script_stops_the_run_and_it_resumes_where_it_was(
    folder: Path, elsewhere: dict[str, list[str]]
) -> None:
    left = call(folder, steps=LONG, serving=elsewhere, until=2)
    assert left.returncode == 0 and "the same call resumes it" in left.stderr, left.stderr
    run = Run(folder / "runs" / "sevens")
    assert run.state == "stopped" and 2 <= run.status.step < LONG
    # In order, with its last step exported.
    assert (run.folder / f"checkpoints/step-{run.status.step}/hf").is_dir(), run.output
    end = run.status.step + 2
    resumed = call(folder, resumes=end)
    assert resumed.returncode == 0, resumed.stderr
    found = json.loads(resumed.stdout.splitlines()[-1])
    assert found["state"] == "finished" and len(found["rewards"]) == end
    assert found["responses"] == 4 * 8 and found["lr"] == 1e-2
    assert (Path(found["model"]) / "model.safetensors").is_file()
    generated, *fates = read_conservation(run.folder / "journal.sqlite").values()
    assert generated == sum(fates) > 0


@pytest.mark.slow
def test_a_run_stops_when_its_script_is_killed_and_exports_its_model_when_asked(
    tmp_path: Path, elsewhere: dict[str, list[str]]
) -> None:
    write_base_model(tmp_path / "model")
    killed = call(tmp_path, steps=LONG, serving=elsewhere, until=2, is_killed=True)
    assert killed.returncode == -9
    run = Run(tmp_path / "runs" / "sevens")
    # Nothing told it: it has seen that its parent is gone.
    assert ended(run) == "stopped"
    # As of a run that had no time for it.
    exported = run.folder / f"checkpoints/step-{run.status.step}/hf"
    shutil.rmtree(exported)
    assert run.model_path == exported and (exported / "model.safetensors").is_file()


def test_what_fails_in_the_run_is_raised_with_its_cause(folder: Path, tmp_path: Path) -> None:
    # Nothing listens there.
    nowhere = {"servers": ["http://127.0.0.1:9"], "start_timeout_seconds": 2}
    write_base_model(tmp_path / "model")
    said = call(tmp_path, steps=2, serving=nowhere)
    assert said.returncode == 1
    assert "RunFailed" in said.stderr or "InputError" in said.stderr, said.stderr
    assert "http://127.0.0.1:9" in said.stderr
