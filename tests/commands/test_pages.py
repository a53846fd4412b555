"""Each refusal of the command line ends with the page that explains it."""

import ast
import re
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import write_project

from asyncrl.commands import main as cli
from asyncrl.commands.pages import OF_THE_CALLER, PAGES, page_about, page_of
from asyncrl.commands.train import explained
from asyncrl.errors import AsyncrlError, DiskError, InputError, ServerError
from asyncrl.system.streams import VARIABLE, Caller

ROOT = Path(__file__).parents[2]


def refusing_modules() -> set[str]:
    """Modules that make an InputError, or an error that ends a run with a sentence."""
    found = set()
    names = {
        kind.__name__ for kind in (InputError, *AsyncrlError.__subclasses__(), *ServerError.__subclasses__())
    }
    for path in ROOT.glob("asyncrl/**/*.py"):
        if not any(f"{name}(" in (text := path.read_text()) for name in names):
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        if any(isinstance(call.func, ast.Name) and call.func.id in names for call in calls):
            found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_module_that_refuses_has_a_page() -> None:
    modules = refusing_modules()
    assert len(modules) > 100
    assert {module for module in modules if page_of(module) is None} == set()


def test_each_module_with_a_page_exists_and_the_callers_decide_for_some() -> None:
    for module in (*PAGES, *OF_THE_CALLER):
        place = ROOT.joinpath(*module.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), module


@pytest.mark.parametrize("page", sorted(set(PAGES.values())))
def test_each_page_and_its_anchor_exist(page: str) -> None:
    path, _, anchor = page.partition("#")
    assert (ROOT / path).is_file()
    assert not anchor or anchor in anchors(ROOT / path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("check recipe.yaml rollout.temperature=0", "asyncrl keys rollout.temperature"),
        ("check recipe.yaml rollout.temprature=1", "asyncrl keys rollout"),
        ("check recipe.yaml seed=many", "asyncrl keys seed"),
        ("check recipe.yaml trainer.parallel.tensr=1", "asyncrl keys trainer.parallel"),
        ("check nowhere.yaml", "docs/recipes.md"),
        ("check recipe.yaml model.path=x", "docs/models.md"),
        ("check recipe.yaml serving.tensor_parallel_size=2 serving.expert_parallel_size=2", "docs/models.md"),
        ("check recipe.yaml data.train=x.jsonl", "docs/recipes.md#rows"),
        ("check recipe.yaml verifying.default=mth", "verifiers/README.md"),
        ("verify train.jsonl --verifier mth", "verifiers/README.md"),
        ("check recipe.yaml serving.max_total_tokens=999999999999", "docs/planning.md"),
        ("check recipe.yaml run_folder=model", "docs/failures.md"),
        ("chat nowhere", "docs/failures.md"),
        ("status nowhere", "docs/page.md#is-my-run-alive"),
        ("journal nowhere", "docs/journal.md"),
        ("report", "docs/report.md"),
        ("eval recipe.yaml gsm9k", "docs/evaluation.md#benchmarks"),
        ("init --gpus 2", "docs/init.md"),
        # What argparse refuses, and what names no command.
        ("init --gpus 0", "docs/init.md"),
        ("train --sed", "docs/recipes.md"),
        ("plan recipe.yaml --fit 0", "docs/planning.md"),
        ("sandbox doctr", "docs/sandbox.md"),
        ("verify --contract mth", "verifiers/README.md"),
        ("chain model", "docs/stages.md#chains"),
        ("tain recipe.yaml", "docs/README.md"),
    ],
)
def test_a_refusal_ends_with_its_page(here: Path, words: str, page: str, command: Command) -> None:
    *said, last = command(*words.split(), code=2).err.splitlines()
    assert said and last == f"Read: {page}"


@pytest.mark.parametrize(
    ("error", "page"), [(ServerError("it died"), "docs/failures.md"), (DiskError("full"), "docs/failures.md")]
)
def test_a_failure_says_its_page_and_ends_with_1(
    error: AsyncrlError, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise ExceptionGroup("tasks", [error])

    assert explained(fail) == 1
    assert capsys.readouterr().err == f"{type(error).__name__}: {error}\nRead: {page}\n"
    assert explained(fail, has_page=False) == 1
    assert capsys.readouterr().err == f"{type(error).__name__}: {error}\n"


def test_a_program_that_reads_json_is_told_no_page(here: Path, command: Command) -> None:
    said = command("status", "nowhere", "--json", code=2).err
    assert said == "nowhere is not a run folder: it has no recipe.yaml.\n"


def test_the_sentence_that_python_code_gets_is_without_the_page(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[InputError] = []
    monkeypatch.setenv(VARIABLE, "0 nowhere")
    monkeypatch.setattr(Caller, "tell", lambda _, error: told.append(error))
    assert cli.main(["check", "recipe.yaml", "rollout.temperature=0"]) == 2
    assert "Read:" not in str(told[0]) and page_about(told[0]) == "asyncrl keys rollout.temperature"


def test_an_error_that_nothing_of_ours_raised_has_no_page() -> None:
    try:
        raise InputError("x")
    except InputError as error:
        assert page_about(error) is None
