"""Each command that takes a file or a folder, given what it is not: a rule over the parsers themselves."""

import argparse
import importlib
import os
import shlex
from pathlib import Path

import pytest
from fakes.newcomer import begin_run, write_project

from asyncrl.commands import main as cli

WRONG = ("nowhere", "nowhere/x", "train.jsonl/x", "dangling", "loop", "model", "empty", "noise", "~nobody_/x")
"""Nothing, below nothing, below a file, links to nothing and to itself, folders of another kind, bytes."""
WORDS = {
    # Command -> its line with {} for the place, and what is right there as well.
    "audit {}": (), "chain {}": (), "chat {}": (), "compare {} runs/old": (), "compare runs/old {}": (),
    "check {}": (), "check @{} recipe.yaml": (), "difficulty {}": (),
    "difficulty recipe.yaml --out {}": ("model", "empty"),
    "eval {}": ("model",), "eval recipe.yaml {}": (), "eval recipe.yaml --checkpoint {}": ("model",),
    "journal {}": (), "plan {}": (),
    "plan recipe.yaml rollout.pilot_samples=2 --simulate --pass-rates {}": (),
    "prompt {}": (), "report {}": (), "report runs/old --out {}": ("model", "empty", "nowhere", "nowhere/x"),
    "reproduce {} 1": (), "select {} --out out.jsonl": (), "servers {} list": (),
    "status {}": (), "track {}": (),
    "train {}": (), "verify {}": (), "verify-data {}": (), "view {}": (),
    "verify-data recipe.yaml data.train={}": (), "check recipe.yaml model.path={}": ("model",),
    "check recipe.yaml data.heldout={}": (),
    "check recipe.yaml run_folder={}": ("nowhere", "nowhere/x", "empty"),
    "verify train.jsonl --verifier ./{}:V": (), "verify --contract ./{}:V": (),
}  # fmt: skip
WRITES = {"--export", "--png", "out"}
"""Places that a command makes after its work."""
PAIRS = [(line, place) for line in WORDS for place in WRONG if place not in WORDS[line]]


def is_quick(line: str, place: str) -> bool:
    """Whether a case is in `make test`: one that reads no model and no data, a folder for a file twice."""
    return "recipe" not in line and (
        place == "nowhere" or (place == "model" and line[:5] in ("chain", "verif"))
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    write_project(folder)
    (folder / "dangling").symlink_to("gone")
    (folder / "loop").symlink_to("loop")
    (folder / "empty").mkdir()
    (folder / "noise").write_bytes(bytes(range(256)) * 8)
    begin_run(folder)
    return folder


def parsers() -> dict[str, argparse.ArgumentParser]:
    modules = {name: f"asyncrl.commands.{name.replace('-', '_')}" for name in cli.COMMANDS}
    return {name: cli.parser_of(name, importlib.import_module(module)) for name, module in modules.items()}


def commands_with_places() -> set[str]:
    """Commands with an argument that is a path, or a recipe with overrides."""
    found = set()
    for name, parser in parsers().items():
        actions = [action for action in parser._actions if not set(action.option_strings) & WRITES]
        if any(action.type is Path or action.dest in ("words", "file") for action in actions):
            found.add(name)
    return found


def test_every_command_that_takes_a_place_is_in_the_table() -> None:
    # `init` and `doctor` look at what there is; `init` makes its folder.
    assert commands_with_places() - {"init"} == {line.split()[0] for line in WORDS}


@pytest.mark.parametrize(
    ("line", "place"),
    [pair if is_quick(*pair) else pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in PAIRS],
)
def test_a_place_of_another_kind_is_refused_with_a_sentence_and_its_page(
    project: Path, line: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = sorted(os.listdir(project))
    code = cli.main(shlex.split(line.replace("{}", place)))
    out, err = capsys.readouterr()
    assert code == 2, out + err
    *said, last = err.strip().splitlines()
    assert said and last.startswith("Read: "), err
    assert "Traceback" not in err and "Errno" not in err, err
    assert sorted(os.listdir(project)) == before


def test_a_bound_of_each_number_is_in_its_parser() -> None:
    unbounded, bounded = [], []
    for name, parser in parsers().items():
        for action in parser._actions:
            if action.type in (int, float):
                unbounded.append((name, action.dest))
            if getattr(action.type, "__qualname__", "").startswith(("whole.", "number.")):
                bounded.append((name, action.dest))
                for text in ("-1", "x", "nan", "inf"):
                    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
                        action.type(text)  # type: ignore[operator]
    assert unbounded == [] and len(bounded) > 25
