"""What a person gets for bad input: one clear sentence, exit code 2, nothing started and nothing written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.base_model import write_base_model

from asyncrl.commands import main as cli
from asyncrl.errors import InputError


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> dict[str, Any]:
    """A recipe that would run; tests break one thing each."""
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1), "verifier": "math"}) for n in range(4)]
    for name in ("train.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    return {
        "name": "t",
        "run_folder": str(tmp_path / "run"),
        "model": {"path": str(model_folder)},
        "data": {"train": str(tmp_path / "train.jsonl"), "heldout": str(tmp_path / "heldout.jsonl")},
        "rollout": {"max_new_tokens": 16},
    }


def written(folder: Path, recipe: dict[str, Any]) -> str:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return str(path)


def contents(folder: Path) -> dict[Path, int]:
    """Files and when they changed; reading a journal makes SQLite create its two companions, and the trial of
    a user's verifier compiles it."""
    passing = {"recipe.yaml", "run", "journal.sqlite-shm", "journal.sqlite-wal", "__pycache__"}
    return {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if passing.isdisjoint(path.relative_to(folder).parts)
    }


@pytest.fixture
def refuse(tmp_path: Path, recipe: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `asyncrl train` says on standard error when it refuses the recipe with these overrides."""

    def call(*overrides: str) -> str:
        before = contents(tmp_path)
        capfd.readouterr()
        code = cli.main(["train", written(tmp_path, recipe), *overrides])
        said = capfd.readouterr().err
        assert code == 2, said
        assert "Traceback" not in said
        assert contents(tmp_path) == before
        return said

    return call


def test_check_accepts_a_recipe_that_would_run_and_writes_nothing(
    tmp_path: Path, recipe: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["check", written(tmp_path, recipe), "--all"])
    said = capfd.readouterr()
    assert code == 0, said.err
    assert "4 training tasks" in said.out and "1 SGLang server(s)" in said.out
    assert yaml.safe_load(said.out)["rollout"]["max_staleness"] == 2
    assert not (tmp_path / "run").exists()


def test_a_start_without_a_terminal_speaks_before_it_reads(
    tmp_path: Path,
    recipe: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = []

    def read(recipe: object) -> None:
        said.append(capsys.readouterr().out)
        raise InputError("no rows")

    monkeypatch.setattr("asyncrl.commands.train.read_inputs", read)
    assert cli.main(["train", written(tmp_path, recipe)]) == 2
    assert said == ["start   checking the model and the rows of t\n"]


@pytest.mark.slow
def test_a_server_that_dies_at_its_start_shows_its_last_lines_and_so_does_the_status_later(
    tmp_path: Path, recipe: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", written(tmp_path, recipe), "serving.extra_arguments=[--log-level, nonsense]"]
    command = [sys.executable, "-m", "asyncrl.commands.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 2
    assert "server 0 ended while it started: exit code 1. Its last lines" in done.stderr
    assert "has no attribute 'NONSENSE'" in done.stderr
    assert cli.main(["status", str(tmp_path / "run")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "state failed" in said and "has no attribute 'NONSENSE'" in said


def test_the_controller_imports_no_torch() -> None:
    script = (
        "import sys, asyncrl.commands.train\n"
        "print([m for m in ('torch', 'transformers', 'sympy', 'sglang', 'megatron') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_verifier_that_the_machine_cannot_serve_is_said_before_anything_starts(
    tmp_path: Path, refuse: Callable[..., str]
) -> None:
    verifier = {"name": "code", "options": {"python": "/no/python"}}
    row = {"prompt": "1", "answer": {"tests": [{"stdin": "", "stdout": "1"}]}, "verifier": verifier}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")

    message = refuse()
    assert 'verifier "code"' in message and "/no/python" in message


def test_a_verifier_that_gives_no_verdict_is_said_before_anything_starts(
    tmp_path: Path, refuse: Callable[..., str]
) -> None:
    (tmp_path / "v.py").write_text(
        "class V:\n    def parse_reference(self, raw): return raw\n"
        "    def verify(self, response, reference): return response == reference\n"
    )
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "1", "answer": "2", "verifier": "./v.py:V"}))
    assert 'train.jsonl:1: the verifier "./v.py:V" gives no verdict' in refuse()
