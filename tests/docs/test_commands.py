"""Every command that a page shows can be typed as it stands there: programs, options, keys, files exist."""

import ast
import importlib
import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from fakes.shown_commands import ROOT, Block, Shown, blocks, commands_of, module_of, parsed, shown_commands

from asyncrl.commands import main as cli
from asyncrl.commands.arguments import is_override
from asyncrl.recipe import Recipe, shipped
from asyncrl.recipe.chain import Chain
from asyncrl.recipe.file import load_recipe, parse_recipe

STANDS_FOR = {"N": "3", "STEP": "12", "ID": "7", "path": "recipes/r1_zero_arithmetic_cpu.yaml"}
"""Words that a reader replaces, where a number or a file is expected."""
OTHERS = ("cd", "git", "jq", "nvidia-smi", "uv")
"""Programs of other projects, whose arguments are not checked."""
RECIPE = {
    "name": "my_run",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl", "heldout": "h.jsonl"},
}
SHIPPED = re.compile(r"(\w+/)?[a-z]\w*_[\w.]+(?<!\.yaml)")
"""How shipped recipes are called, and folders of runs are not."""
OURS = ("asyncrl", "verifiers", "sandbox")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SHOWN = shown_commands()


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def of(*programs: str) -> list[Shown]:
    """Each command of the programs once, whatever the place."""
    found = {(each.words, each.is_mentioned): each for each in reversed(SHOWN) if each.program in programs}
    assert found
    return [*reversed(found.values())]


def typed(words: Sequence[str]) -> list[str]:
    """The words without dots that say "and so on", and with something for those that a reader replaces."""
    shorter = (word.removesuffix("...") for word in words)
    return [STANDS_FOR.get(word, word) for word in shorter if word]


def by_place(shown: Shown) -> str:
    return f"{shown.place} {' '.join(shown.words)}"


@pytest.mark.parametrize("shown", of("asyncrl"), ids=by_place)
def test_a_command_of_asyncrl_is_read_by_its_parser_and_its_recipe_takes_the_keys(shown: Shown) -> None:
    check_asyncrl(typed(shown.words[1:]), is_mentioned=shown.is_mentioned)


def check_asyncrl(words: list[str], *, is_mentioned: bool = False) -> None:
    name, *others = words
    assert name in cli.COMMANDS
    if is_mentioned and all(word.startswith("-") for word in others):
        options = cli.parser_of(name, module_of(name)).format_help()
        assert [word for word in others if not re.search(rf"(^|[ \[]){word}\b", options)] == []
        return
    arguments = parsed(words)
    files = [word for word in others if word.startswith("recipes/")]
    assert [file for file in files if not Path(file).exists()] == []
    if name == "chain":
        assert not SHIPPED.fullmatch(others[0]) or shipped.is_named(Path(others[0]), "chain")
    elif name == "eval" and arguments.words:
        check_recipe(Path(arguments.words[0]), arguments.words[1:])
    elif "overrides" in arguments and arguments.recipe is not None:
        check_recipe(arguments.recipe, arguments.overrides)


def check_recipe(path: Path, words: Sequence[str]) -> None:
    """It is one of the reader's, or loads with the overrides among the words."""
    overrides = [word for word in words if is_override(word) and not may_be_the_readers(word)]
    there = shipped.find(path).file.is_file()
    assert there or not SHIPPED.fullmatch(str(path))
    load_recipe(path if there else Path("recipes/r1_zero_arithmetic_cpu.yaml"), overrides)


def may_be_the_readers(override: str) -> bool:
    """Whether it is an overlay that a reader would write: a file of no folder here."""
    return override.startswith("@") and override.endswith(".yaml") and "recipes/" not in override


@pytest.mark.parametrize("shown", of("make"), ids=by_place)
def test_a_make_command_has_a_target_whose_commands_read_its_variables(shown: Shown) -> None:
    words = typed(shown.words[1:])
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    assert [
        name for name in variables if f"$({name})" not in MAKEFILE and f"$(if $({name})" not in MAKEFILE
    ] == []
    recipe = variables.get("RECIPE")
    assert recipe is None or Path(recipe).is_file() or "/" not in recipe
    printed = subprocess.run(
        ["make", "--dry-run", *words], capture_output=True, text=True, check=False, timeout=300
    )
    assert printed.returncode == 0, printed.stderr
    for line in printed.stdout.replace("\\\n", " ").splitlines():
        if line.startswith((".venv/bin/asyncrl", ".venv/bin/python tests/")):
            for run in commands_of(line, shown.place):
                if run.program == "asyncrl":
                    check_asyncrl(list(run.words[1:]))
                else:
                    check_python(run)


def test_the_makefile_works_in_a_folder_whose_name_has_spaces() -> None:
    """A shell keeps a word with a space together within quotes, or within the braces of an assignment."""
    named = [line for line in MAKEFILE.splitlines() if "$(CURDIR)" in line]
    assert named
    assert [
        line for line in named if not re.search(r'"\$\(CURDIR\)[^"]*"|\{\w+:-\$\(CURDIR\)[^}]*\}', line)
    ] == []


def check_python(shown: Shown) -> None:
    """A script of the repository, or a module: it exists and has the options."""
    script, *others = shown.words[1:]
    if script == "-m":
        found = importlib.util.find_spec(others.pop(0))
        assert found is not None and found.origin is not None
        path = Path(found.origin)
    else:
        path = ROOT / script
    source = path.read_text(encoding="utf-8")
    if path.is_relative_to(ROOT):
        options = [word.partition("=")[0] for word in others if word.startswith("-")]
        assert [option for option in options if f'"{option}"' not in source] == []


@pytest.mark.parametrize("shown", of("python", "python3"), ids=by_place)
def test_a_python_command_runs_a_script_or_module_that_exists(shown: Shown) -> None:
    check_python(shown)


@pytest.mark.parametrize("shown", of("pip", "source"), ids=by_place)
def test_files_and_extras_that_a_command_names_exist(shown: Shown) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = shown.words
    if shown.program == "source":
        assert words == ("source", ".venv/bin/activate")
    files = [words[place + 1] for place, word in enumerate(words) if word == "-r"]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    for extras in re.findall(r"asyncrl[^ \[]*\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    for version in re.findall(r"asyncrl-(\d[\d.]*)-py3", " ".join(words)):
        assert version == project["version"]


def test_no_other_program_is_shown() -> None:
    known = ("asyncrl", "make", "python", "python3", "pip", "source", *OTHERS)
    assert [by_place(shown) for shown in SHOWN if shown.words and shown.program not in known] == []


@pytest.mark.parametrize(
    "line",
    [
        "asyncrl trian recipe.yaml",
        "asyncrl train recipe.yaml rollout.max_stalness=0",
        "asyncrl train recipe.yaml rollout.max_staleness=some",
        "asyncrl train recipes/r1_zero_arithmetic.yaml",
        "asyncrl train r1_zero_arithmetic",
        "asyncrl chain distil_cpu",
        "asyncrl report RUN --formats csv",
        "make trian",
        "make train RECIPES=recipes/agent_cpu.yaml",
        "make train RECIPE=recipes/agents_cpu.yaml",
        'make train ARGS="trainer.steps=3"',
        'make gpu-check ARGS="--part engine"',
        "python tests/docs/planned_model.py",
        "pip install -r gyms.lock",
        "pip install asyncrl[gyms]",
    ],
)
def test_a_command_that_cannot_be_typed_is_found(line: str) -> None:
    """Each is a line of a page with one thing spoilt."""
    (shown,) = commands_of(line, "page:1")
    checks = {
        "asyncrl": test_a_command_of_asyncrl_is_read_by_its_parser_and_its_recipe_takes_the_keys,
        "make": test_a_make_command_has_a_target_whose_commands_read_its_variables,
        "python": check_python,
        "pip": test_files_and_extras_that_a_command_names_exist,
    }
    with pytest.raises((AssertionError, SystemExit, OSError, ValueError)):
        checks[shown.program](shown)


def at_its_place(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", list(blocks("bash")), ids=at_its_place)
def test_bash_reads_the_blocks(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", list(blocks("python")), ids=at_its_place)
def test_python_reads_the_blocks_and_finds_what_they_import(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in OURS:
                there = vars(importlib.import_module(module))
                assert [name.name for name in node.names if name.name not in there] == []


@pytest.mark.parametrize("block", list(blocks("yaml")), ids=at_its_place)
def test_keys_and_values_of_the_recipes_on_a_page_are_valid(block: Block) -> None:
    shown = yaml.safe_load(block.text)
    if "scrape_configs" in shown:
        return  # of Prometheus
    if "stages" in shown:
        Chain.model_validate(shown)
        return
    assert shown.keys() <= Recipe.model_fields.keys()
    parse_recipe({**RECIPE, **shown}, source=block.page)
