"""Commands that read a run whose journal or metrics are damaged: a sentence, exit code 2."""

from pathlib import Path

import pytest
import yaml
from fakes.records import finish, make_queue, make_task
from fakes.refusals import without_page

from asyncrl.commands import main as cli

RECIPE = {"name": "t", "data": {"train": "d"}, "evaluation": {"every_steps": 0}}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    queue = make_queue(tmp_path, batch=1)
    queue.announce(0)
    finish(queue, queue.admit(make_task()), version=0)
    queue.take(0)
    queue.journal.close()
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1, "time_seconds": 0}\n')
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"model": {"path": str(tmp_path)}}))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "command"),
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
def test_garbage_is_said_in_a_sentence(
    run_folder: Path, capsys: pytest.CaptureFixture[str], name: str, command: list[str]
) -> None:
    for companion in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (run_folder / companion).unlink(missing_ok=True)
    (run_folder / name).write_bytes(b"garbage\xff\n" * 1000)
    assert cli.main([command[0], str(run_folder), *command[1:]]) == 2
    said = without_page(capsys.readouterr().err)
    assert str(run_folder / name) in said and len(said.splitlines()) == 1
