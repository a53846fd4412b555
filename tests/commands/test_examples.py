"""The examples in the help of each command: its own parser reads them, what they name exists. Ctrl-C before a
command has begun."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from fakes.shown_commands import ROOT, commands_of, module_of, parsed

from asyncrl.commands import main as cli
from asyncrl.commands.main import main
from asyncrl.data.benchmarks import CATALOG
from asyncrl.launch.first_recipe.rows import TRAINED
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.keys import markdown
from verifiers.registry import BUILT_IN


def commands() -> list[tuple[str, ...]]:
    """The words behind `asyncrl` of each example."""
    lines = [(line, command) for command in cli.COMMANDS for line in module_of(command).EXAMPLES]
    return [
        shown.words[1:]
        for line, command in lines
        for shown in commands_of(line, command)
        if shown.program == "asyncrl"
    ]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_help_of_each_command_ends_with_two_examples_or_more(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out.split("\nexamples:\n")[1].splitlines()
    assert len(shown) == len(set(shown)) >= 2
    assert all(line.startswith(f"  asyncrl {command}") for line in shown)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_an_example_is_read_by_the_parser_of_its_command(words: list[str]) -> None:
    parsed(words)


def test_each_recipe_of_an_example_is_shipped_and_takes_its_overrides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    named = [words for words in commands() if any(word.startswith("recipes/") for word in words)]
    assert len(named) >= 10
    for words in named:
        (path,) = (Path(word) for word in words if word.startswith("recipes/"))
        assert path.is_file(), words
        if words[0] not in ("chain", "eval"):
            load_recipe(path, parsed(words).overrides)


def test_each_run_of_an_example_is_the_run_of_a_shipped_recipe_or_any() -> None:
    runs = {word for words in commands() for word in words if word.startswith("runs/")}
    shipped = {f"runs/{path.stem}" for path in (ROOT / "recipes").glob("*.yaml")}
    assert runs <= shipped | {f"runs/{name}" for name in ("first", "second", "seed_1", "seed_2", "other")}


def test_each_key_benchmark_verifier_and_data_set_of_an_example_exists() -> None:
    found = {"keys": 0, "eval": 0, "verifier": 0, "data": 0}
    for words in commands():
        arguments = parsed(words)
        if words[0] == "keys":
            markdown(arguments.key)
            found["keys"] += 1
        for word in words[2:] if words[0] == "eval" else ():
            if word.isidentifier():
                assert word in CATALOG
                found["eval"] += 1
        verifier = getattr(arguments, "contract", None) or getattr(arguments, "verifier", None)
        if verifier is not None:
            assert verifier in BUILT_IN
            found["verifier"] += 1
        if words[0] == "init" and arguments.data is not None:
            assert arguments.data in TRAINED
            found["data"] += 1
    assert all(found.values()), found


def test_ctrl_c_while_a_subcommand_is_imported_is_an_exit_code_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["train", "recipe.yaml"]) == 130
