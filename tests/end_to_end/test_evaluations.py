"""`asyncrl eval` on real engines: two models although a server is killed, Ctrl-C, and what is kept."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
LIMIT_SECONDS = 600
"""For a command that hangs: a machine with much else to do takes minutes."""


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

    def __init__(self, folder: Path, *words: str, names: Sequence[str] = ("rows.jsonl",)) -> None:
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [ASYNCRL, "eval", "recipe.yaml", *names, *words],
                cwd=folder,
                env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def servers(self) -> list[psutil.Process]:
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in family if "sglang.launch_server" in " ".join(child.cmdline())]

    def finish(self) -> int:
        return self.process.wait(timeout=LIMIT_SECONDS)


@pytest.mark.slow
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


AGENT = """
import os, pathlib

async def run(task):
    pathlib.Path(os.environ["MARKS"], str(os.getpid())).touch()
    first = await task.say(task.messages, max_tokens=4)
    if "WAIT" in os.environ:
        import time
        time.sleep(1000)
    await task.say([*task.messages, first, {"role": "user", "content": "1"}], max_tokens=4)
"""


@pytest.mark.slow
def test_an_agent_plays_each_sample_and_ctrl_c_leaves_none_of_its_programs(project: Path) -> None:
    (project / "agent.py").write_text(AGENT)
    (project / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}={% endfor %}"
    )
    (marks := project / "marks").mkdir()
    out = project / "out.json"
    agent = {"function": "./agent.py:run", "environment": {"MARKS": str(marks)}}
    serving = {**RECIPE["serving"], "num_servers": 2}
    (project / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "agent": agent, "serving": serving}))
    evaluation = Evaluating(project, "--k", "1", "--out", str(out))
    assert evaluation.finish() == 0, evaluation.said()
    ((found,),) = [each["results"].values() for each in json.loads(out.read_text())["benchmarks"]]
    assert (found["num_tasks"], found["num_faults"], found["turns_mean"]) == (8, 0, 2.0)
    assert found["response_tokens_mean"] <= 8 and "tool_use_share" not in found
    assert len(list(marks.iterdir())) == 8

    agent["environment"]["WAIT"] = "1"
    (project / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "agent": agent}))
    evaluation = Evaluating(project, "--k", "1")
    evaluation.wait_for(lambda: len(list(marks.iterdir())) == 16)
    family = psutil.Process(evaluation.process.pid).children(recursive=True)
    assert any("agents.function" in " ".join(child.cmdline()) for child in family)
    evaluation.process.send_signal(signal.SIGINT)
    assert evaluation.finish() == 130, evaluation.said()
    gone, left = psutil.wait_procs(family, timeout=300)
    assert gone and not left


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
    gone, left = psutil.wait_procs(servers, timeout=300)
    assert gone and not left


def kept_answers(project: Path) -> list[tuple[bytes, bytes]]:
    """(key, tokens) of each kept answer."""
    file = project / "cache" / "asyncrl" / "evaluations" / "answers.sqlite"
    if not file.is_file():
        return []
    database = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)
    try:
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'answers'").fetchall()
        return database.execute("SELECT key, tokens FROM answers").fetchall() if tables else []
    finally:
        database.close()


@pytest.mark.slow
def test_a_call_that_is_killed_leaves_its_answers_to_a_call_for_more_samples(project: Path) -> None:
    shorter = {**RECIPE, "rollout": {"max_new_tokens": 24}}
    (project / "recipe.yaml").write_text(yaml.safe_dump(shorter))
    first = Evaluating(project, "--k", "24")
    first.wait_for(lambda: len(kept_answers(project)) > 0)
    first.process.kill()
    assert first.finish() == -signal.SIGKILL
    num_kept = len(kept_answers(project))
    assert 0 < num_kept < 8 * 24

    out = project / "out.json"
    second = Evaluating(project, "--k", "32", "--out", str(out))
    assert second.finish() == 0, second.said()
    ((found,),) = [each["results"].values() for each in json.loads(out.read_text())["benchmarks"]]
    assert (found["num_kept"], found["num_faults"], len(found["curves"]["pass"]["mean"])) == (num_kept, 0, 32)
    answers = kept_answers(project)
    assert len(answers) == 8 * 32
    # Servers that began with one seed would have drawn the same samples again.
    long = [answer for answer in answers if len(answer[1]) >= 4 * 12]
    assert len(long) > 8 * 16 and len(set(long)) == len(long)

    third = Evaluating(project, "--k", "32", "--out", str(out))
    assert third.finish() == 0, third.said()
    assert "starting" not in third.said()
    ((again,),) = [each["results"].values() for each in json.loads(out.read_text())["benchmarks"]]
    assert {**again, "num_kept": num_kept} == found and again["num_kept"] == 8 * 32
