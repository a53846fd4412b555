"""`asyncrl eval` on real engines: two models side by side although a server is killed, and Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from fakes.base_model import write_base_model

ASYNCRL = str(Path(sys.executable).with_name("asyncrl"))
SEVENS = Path(__file__).with_name("sevens.py")
RECIPE = {
    "name": "sevens",
    "model": {"path": "model", "context_tokens": 96, "dtype": "bfloat16"},
    "data": {"train": "rows.jsonl"},
    "rollout": {"max_new_tokens": 64},
    "serving": {"max_total_tokens": 8192, "max_running_requests": 32},
    "evaluation": {"every_steps": 0, "samples_per_task": 64},
}
NUM_RESPONSES = 8 * 64


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_base_model(tmp_path / "model")
    write_base_model(tmp_path / "other", seed=1)
    (tmp_path / "sevens.py").write_text(SEVENS.read_text())
    rows = [{"prompt": f"{n}=", "answer": "7", "verifier": "./sevens.py:Sevens"} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    return tmp_path


class Evaluating:
    """The command, which runs while the test does things to it."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [ASYNCRL, "eval", "recipe.yaml", "rows.jsonl", *words],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Tests that run in the background of a script inherit that Ctrl-C is ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def servers(self) -> list[psutil.Process]:
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in family if "sglang.launch_server" in " ".join(child.cmdline())]

    def finish(self) -> int:
        return self.process.wait(timeout=240)


@pytest.mark.exhaustive
def test_a_server_that_is_killed_comes_back_and_both_models_are_measured(project: Path) -> None:
    out = project / "out.json"
    evaluation = Evaluating(project, "--at", "base", "--checkpoint", "other", "--out", str(out))
    evaluation.wait_for(lambda: "start   rows.jsonl on base" in evaluation.said())
    evaluation.servers()[0].kill()
    assert evaluation.finish() == 0, evaluation.said()
    assert "serves again, with the weights that it was started with" in evaluation.said()
    assert "rows.jsonl: 8 tasks, template none, as the rows are, 64 samples" in evaluation.said()
    (found,) = json.loads(out.read_text())["benchmarks"]
    assert {len(row["avg_scores"]) for row in found["results"].values()} == {8}
    assert [row["num_faults"] for row in found["results"].values()] == [0, 0]
    assert found["differences"].keys() == {"other"}


@pytest.mark.exhaustive
def test_ctrl_c_ends_in_one_line_that_says_what_was_finished(project: Path) -> None:
    evaluation = Evaluating(project)
    evaluation.wait_for(lambda: "start   rows.jsonl on base" in evaluation.said())
    servers = evaluation.servers()
    evaluation.process.send_signal(signal.SIGINT)
    assert evaluation.finish() == 130, evaluation.said()
    *_, begun, last = evaluation.said().splitlines()
    assert begun.startswith("start   rows.jsonl on base")
    assert last.startswith("Stopped. Finished: nothing; rows.jsonl on base was at ")
    assert last.endswith(f" of {NUM_RESPONSES:,} responses.")
    gone, left = psutil.wait_procs(servers, timeout=120)
    assert gone and not left
