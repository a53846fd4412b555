"""`asyncrl chat` on a real engine: an environment plays a row, and Ctrl-C ends its turn, not the chat."""

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
GAME = """
import os, pathlib, time
from asyncrl.turns import End, Observation

HERE = pathlib.Path(__file__).parent / "marks"

class Game:
    def start(self, row):
        self.turn = 0

    def step(self, text):
        self.turn += 1
        if (HERE / "slow").exists():
            (HERE / "pid").write_text(str(os.getpid()))
            time.sleep(1000)
        return Observation(str(self.turn)) if self.turn < 3 else End(1.0, detail="three turns are over")
"""


@pytest.mark.exhaustive
def test_an_environment_answers_a_row_and_ctrl_c_ends_its_turn_and_leaves_the_chat(tmp_path: Path) -> None:
    write_base_model(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}={% endfor %}"
    )
    (tmp_path / "game.py").write_text(GAME)
    # Next to the run folder, which is hidden, an environment makes no new files.
    (marks := tmp_path / "marks").mkdir()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "12", "answer": "7"}))
    (tmp_path / "run").mkdir()
    recipe = {
        "name": "game",
        "run_folder": str(tmp_path / "run"),
        "model": {"path": str(tmp_path / "model"), "context_tokens": 96},
        "data": {"train": str(tmp_path / "rows.jsonl")},
        "rollout": {"max_new_tokens": 12},
        "turns": {"environment": f"{tmp_path}/game.py:Game", "max_turn_tokens": 4, "timeout_seconds": 900.0},
        "serving": {"max_total_tokens": 8192, "max_running_requests": 8},
        "evaluation": {"every_steps": 0},
    }
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with (tmp_path / "said").open("w") as said:
        chat = subprocess.Popen(
            [ASYNCRL, "chat", str(tmp_path / "run"), "--base"],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def shown() -> str:
        return (tmp_path / "said").read_text()

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert chat.poll() is None and time.monotonic() < deadline, shown()
            time.sleep(0.05)

    def type_line(line: str) -> None:
        assert chat.stdin is not None
        chat.stdin.write(f"{line}\n")
        chat.stdin.flush()

    try:
        type_line("/row 1")
        wait_for(lambda: "(the verdict is correct, score 1: three turns are over)" in shown())
        assert "|   1\n" in shown() and "|   2\n" in shown()
        (marks / "slow").touch()
        type_line("/row 1")
        wait_for(lambda: (marks / "pid").exists() and (marks / "pid").read_text() != "")
        chat.send_signal(signal.SIGINT)
        wait_for(lambda: "(stopped: " in shown())
        wait_for(lambda: not psutil.pid_exists(int((marks / "pid").read_text())))
        (marks / "slow").unlink()
        type_line("/row 1")
        wait_for(lambda: shown().count("three turns are over") == 2)
        family = psutil.Process(chat.pid).children(recursive=True)
        assert chat.stdin is not None
        chat.stdin.close()
        assert chat.wait(timeout=300) == 0, shown()
        gone, left = psutil.wait_procs(family, timeout=300)
        assert gone and not left
    finally:
        chat.kill()
