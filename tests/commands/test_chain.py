"""`asyncrl chain` with a selection: passed over once it is whole, resumed where it was broken off.

`tests/end_to_end/test_stages.py` trains one; here the responses are those of a run's journal.
"""

import argparse
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.audited_run import write_audited_run
from fakes.commands import Command

from asyncrl.commands import select
from asyncrl.readers.selection.written import Output
from asyncrl.recipe.chain import SelectStage

STEPS = [{1: [("\\boxed{2}", "correct"), ("\\boxed{7}", "wrong")], 2: [("\\boxed{3}", "correct")] * 2}]
OUT = Path("chosen.jsonl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_audited_run(tmp_path, STEPS)
    write()
    return tmp_path


def write(*others: Any, **changed: Any) -> None:
    stage = {"select": "runs/mine", "out": str(OUT), **changed}
    Path("chain.yaml").write_text(yaml.safe_dump({"folder": "story", "stages": [stage, *others]}))


def chain(code: int, command: Command) -> str:
    said = command("chain", "chain.yaml", code=code)
    return said.err if code == 2 else said.out


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("story/stage-1.json").read_text())
    return found


def test_a_selection_that_is_whole_is_passed_over(folder: Path, command: Command) -> None:
    said = chain(0, command)
    assert "stage 1 of 1: chosen" in said and "story/report.html" in said
    whole = OUT.read_bytes()
    assert len(whole.splitlines()) == 2 and record()["num_lines"] == 2 and record()["state"] == "finished"
    assert "chosen.jsonl is selected: 2 lines." in chain(0, command)
    OUT.unlink()
    assert "is selected" not in chain(0, command)
    assert OUT.read_bytes() == whole


def test_a_selection_that_was_broken_off_is_made_again(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Output, "add", lambda *_: signal.raise_signal(signal.SIGINT))
        chain(130, command)
    assert not OUT.exists() and record()["state"] == "stopped"
    spent = record()["wall_seconds"]
    command("status", "story", code=3)
    chain(0, command)
    assert record()["state"] == "finished" and record()["wall_seconds"] > spent
    # kill -9 after the file was whole, before that was written down.
    whole = OUT.read_bytes()
    Path("story/stage-1.json").write_text(json.dumps({**record(), "state": "running", "digest": None}))
    chain(0, command)
    assert OUT.read_bytes() == whole and record()["state"] == "finished"


def test_a_stage_that_has_begun_may_not_become_another(folder: Path, command: Command) -> None:
    chain(0, command)
    write(limit=1)
    assert "1 began with limit = null, the chain now says 1. Put the old value back" in chain(2, command)
    write()
    OUT.write_text(OUT.read_text() + "\n")
    assert "out is chosen.jsonl, which has changed since it was selected" in chain(2, command)
    Path("chain.yaml").write_text(yaml.safe_dump({"folder": "story", "stages": ["recipe.yaml"]}))
    assert "Stage 1 of story was select into chosen.jsonl, has begun, and is now rl into" in chain(2, command)


def test_what_a_selection_cannot_do_is_said_before_it_begins(folder: Path, command: Command) -> None:
    OUT.write_text("mine")
    assert "out is chosen.jsonl, which exists, and this chain did not write it" in chain(2, command)
    assert OUT.read_text() == "mine" and not Path("story/stage-1.json").exists()
    OUT.unlink()
    # The first stage does not begin where the second cannot.
    write({"select": "runs/mine", "out": "best.jsonl", "choose": "bets"})
    assert "--choose is bets, expected best" in chain(2, command)
    assert not OUT.exists()


def test_a_stage_has_every_option_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    select.add_arguments(parser)
    words = {action.dest for action in parser._actions} - {"help", "words", "force", "json"}
    assert words - {"settings"} == set(SelectStage.model_fields) - {"select", "overrides", "set"}
