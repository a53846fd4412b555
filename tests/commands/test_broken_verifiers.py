"""A verifier that cannot grade is a sentence with file and line, exit code 2, before anything starts."""

import json
from pathlib import Path

import pytest
import yaml
from fakes.base_model import write_base_model

from asyncrl.commands import main as cli


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """Of a recipe, for each test: a process imports the verifier of a path once."""
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1), "verifier": "./v.py:V"} for n in range(4)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = {
        "name": "t",
        "run_folder": str(tmp_path / "run"),
        "model": {"path": str(model)},
        "data": {"train": str(tmp_path / "train.jsonl")},
        "rollout": {"max_new_tokens": 16},
        "verifying": {"timeout_seconds": 0.2},
        "evaluation": {"every_steps": 0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


VERIFIER = """
import os, sys, time
from verifiers.verdict import Outcome, Verdict

class V:
    def parse_reference(self, raw):
        return raw

    def verify(self, {parameters}):
        {body}
"""


@pytest.mark.parametrize(
    ("parameters", "body", "said"),
    [
        ("response", "pass", "TypeError: V.verify() takes 2 positional arguments but 3 were given"),
        ("response, reference", "return response == reference", "verify returned bool, expected a Verdict"),
        ("response, reference", "raise OSError('\\ud800\\x00')", "OSError: \ufffd\ufffd ("),
        ("response, reference", "sys.exit(1)", "SystemExit: 1"),
        ("response, reference", "os._exit(1)", "the worker ended by itself, with exit code 1"),
        ("response, reference", "os.abort()", "the worker crashed: SIGABRT"),
        ("response, reference", "time.sleep(60)", "no answer in"),
        ("response, reference", "return Verdict(Outcome.CORRECT, 2.0)", "score is 2.0, expected a number in"),
    ],
)
def test_it_is_refused_with_its_own_error(
    folder: Path, parameters: str, body: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "v.py").write_text(VERIFIER.format(parameters=parameters, body=body))
    code = cli.main(["check", str(folder / "recipe.yaml")])
    complaint = capfd.readouterr().err
    assert code == 2, complaint
    assert "Traceback" not in complaint
    # Before it, what was tried, where that took seconds.
    *_, line, page = complaint.splitlines()
    assert page == "Read: verifiers/README.md#a-verifier-of-your-own"
    assert f'{folder / "train.jsonl"}:1: the verifier "./v.py:V" gives no verdict' in line
    assert said in line
    assert not (folder / "run").exists()
