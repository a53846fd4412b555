"""A start that fails leaves its cause and its state in the run folder, whatever it was at."""

import os
from pathlib import Path

import pytest
from fakes.statuses import make_status

from asyncrl.commands.main import main
from asyncrl.errors import InputError, ServerError
from asyncrl.launch.restarts import failure_recorded, record_cause
from asyncrl.observe.terminal.postmortem import POST_MORTEM, RecentEvents
from asyncrl.readers.page.overview import read_head, read_line
from asyncrl.readers.page.runs import Run
from asyncrl.readers.page.servers import read_servers
from asyncrl.readers.status.current_run import read_run
from asyncrl.run.status import starting, write_status

DIED = "server 0 ended while it started: exit code 1. Its last lines (logs/server-0.log):\nno such option"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text("name: run\n")
    write_status(tmp_path, starting(step=0, total_steps=40))
    return tmp_path


def fail(folder: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), failure_recorded(folder):
        raise error


def test_the_cause_of_a_failed_start_is_in_status_and_in_every_view_of_the_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(folder, InputError(f"The run cannot start: {DIED}"))
    assert main(["status", str(folder)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "state failed" in said
    assert "cause InputError: The run cannot start: server 0 ended while it started" in said
    run = Run("run", folder)
    found = read_servers(run)["found"]
    assert found is not None
    for view in (read_head(run), read_line(run), found):
        assert view["state"] == "failed"
        assert view["cause"] is not None and "no such option" in view["cause"]


def test_what_the_run_itself_wrote_down_is_kept(folder: Path) -> None:
    with pytest.raises(ExceptionGroup), failure_recorded(folder), RecentEvents() as events:
        error = ServerError("all servers are dead")
        record_cause(folder, error, {"Servers": "a: dead"}, events)
        write_status(folder, make_status(state="failed", step=7))
        raise ExceptionGroup("loops", [error])
    assert "a: dead" in (folder / POST_MORTEM).read_text()
    now = read_run(folder)
    assert (now.cause, now.step) == ("ServerError: all servers are dead", 7)


def test_the_cause_is_that_of_the_last_start(folder: Path) -> None:
    for words in ("the first", "the second"):
        fail(folder, ServerError(words))
        # Clocks of file systems tick in milliseconds.
        os.utime(folder / POST_MORTEM, (0, 0))
    assert read_run(folder).cause == "ServerError: the second"


def test_a_stop_is_no_failure(folder: Path) -> None:
    fail(folder, KeyboardInterrupt())
    assert not (folder / POST_MORTEM).exists()
    assert read_run(folder).state == "starting"
