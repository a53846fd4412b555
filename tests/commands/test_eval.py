"""What `asyncrl eval` refuses before any server starts, each in one sentence, and the list of benchmarks."""

import socket
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import write_project
from fakes.refusals import without_page

from asyncrl.data.benchmarks import CATALOG


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(command: Command, *words: str) -> str:
    return command("eval", *words, code=2).err.strip()


def test_the_list_has_every_benchmark_with_its_source(command: Command) -> None:
    said = command("eval", "--list").out
    for name, benchmark in CATALOG.items():
        assert name in said and benchmark.source.path in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "asyncrl eval needs a recipe, the folder of a run or a model, then benchmarks"),
        (["recipe.yaml", "--at", "last"], "--at has last, but runs/mine/checkpoints holds no checkpoint"),
        (["recipe.yaml", "--top-p", "1.5"], 'override "evaluation.top_p=1.5": evaluation.top_p is 1.5'),
        (["recipe.yaml", "--min-p", "1"], 'override "evaluation.min_p=1.0": evaluation.min_p is 1.0'),
        (["recipe.yaml", "--repetition-penalty", "3"], 'override "evaluation.repetition_penalty=3.0": '),
        (
            ["recipe.yaml", "--out", "no/such/x.json"],
            "--out is no/such/x.json, which could not be written: No such",
        ),
        (["recipe.yaml", "heldout.jsonl", "heldout.jsonl"], "The benchmark heldout.jsonl is named twice."),
        (["model", "gsm8"], "gsm8 is neither a benchmark nor a file of rows."),
        (["model"], "The recipe has no data.heldout. Name benchmarks, such as gsm8k"),
    ],
)
def test_a_mistake_is_one_sentence(project: Path, command: Command, words: list[str], sentence: str) -> None:
    said = refusal(command, *words)
    assert sentence in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_one_sentence(project: Path, command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(command, "recipe.yaml", f"serving.first_port={port}")
    assert without_page(said) == (
        f"port {port} (serving.first_port) is taken: Address already in use. Set another one, or 0 for any."
    )
