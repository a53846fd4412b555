"""Commands on a run whose files another version of asyncrl wrote, or that are damaged: one sentence, nothing
written."""

import sqlite3
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import write_project
from fakes.records import finish, make_queue, make_task
from fakes.refusals import without_page

from asyncrl.journal.schema import own_version
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A recipe whose run took a step."""
    write_project(tmp_path)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    with RunFolder(recipe.folder()) as folder:
        folder.open(recipe)
    queue = make_queue(recipe.folder(), batch=1)
    queue.announce(0)
    finish(queue, queue.admit(make_task()), version=0)
    queue.take(0)
    queue.journal.close()
    (recipe.folder() / "metrics.jsonl").write_text('{"kind": "step", "step": 1, "time_seconds": 0}\n')
    return tmp_path


def store_as_schema_4(path: Path) -> None:
    connection = sqlite3.connect(path)
    for table in ("groups", "repetitions", "trained_tokens"):
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN taken_version TO step")
    connection.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")
    connection.commit()
    # All is in the file itself, which is compared.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def contents(folder: Path) -> dict[str, bytes]:
    """SQLite makes the journal's two companions when it is read."""
    passing = ("journal.sqlite-shm", "journal.sqlite-wal")
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in passing
    }


@pytest.mark.parametrize(
    "words",
    [
        ["train", "RECIPE"],
        ["check", "RECIPE"],
        ["journal", "RUN"],
        ["journal", "RUN", "--group", "0"],
        ["view", "RUN", "--export", "page.html"],
        ["report", "RUN"],
        ["reproduce", "RUN", "1"],
    ],
)
def test_a_run_begun_before_the_change_is_refused_and_left_as_it_is(
    words: list[str], project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    recipe = project / "recipe.yaml"
    run = load_recipe(recipe).folder()
    store_as_schema_4(run / "journal.sqlite")
    before = contents(project)
    places = {"RECIPE": str(recipe), "RUN": str(run)}
    said, page = command(*(places.get(word, word) for word in words), code=2).err.splitlines()
    assert page.startswith("Read: docs/")
    assert f"journal.sqlite was written by asyncrl {own_version()} with schema 4, and asyncrl " in said
    assert said.endswith("(or name) to a new one to start over.")
    assert contents(project) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("journal.sqlite", ["journal"]),
        ("journal.sqlite", ["journal", "--group", "0"]),
        ("journal.sqlite", ["reproduce", "1"]),
        ("journal.sqlite", ["view", "--export", "page.html"]),
        ("journal.sqlite", ["report"]),
        ("metrics.jsonl", ["report"]),
        ("metrics.jsonl", ["reproduce", "1"]),
        ("metrics.jsonl", ["view", "--export", "page.html"]),
    ],
)
def test_garbage_is_said_in_a_sentence(project: Path, name: str, words: list[str], command: Command) -> None:
    run_folder = load_recipe(project / "recipe.yaml").folder()
    for companion in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (run_folder / companion).unlink(missing_ok=True)
    (run_folder / name).write_bytes(b"garbage\xff\n" * 1000)
    said = without_page(command(words[0], run_folder, *words[1:], code=2).err)
    assert str(run_folder / name) in said and len(said.splitlines()) == 1
