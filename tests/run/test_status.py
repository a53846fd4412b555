"""status.json: written as a whole, read by anybody, and honest about runs that died."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from fakes.small_disk import refused_writes
from fakes.statuses import make_status

from asyncrl.errors import InputError
from asyncrl.run.status import SILENT_SECONDS, is_running, read_status, starting, words_of_state, write_status
from asyncrl.system.places import STATUS


def test_what_was_written_is_read_and_no_half_of_it_is_left(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    for step in (3, 4):
        write_status(tmp_path, make_status(step=step))
    found = read_status(tmp_path)
    assert found is not None and found["step"] == 4
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]


def test_a_full_disk_leaves_the_former_status_whole(tmp_path: Path) -> None:
    write_status(tmp_path, make_status(step=3))
    with refused_writes(), pytest.raises(OSError):
        write_status(tmp_path, make_status(step=4))
    found = read_status(tmp_path)
    assert found is not None and found["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"step": 1}', b"\xff", b"{}"])
def test_a_file_that_is_no_status_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATUS).write_bytes(content)
    with pytest.raises(InputError, match="status.json is not the status of a run"):
        read_status(tmp_path)


def test_a_run_whose_process_was_killed_is_no_longer_running() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        status = make_status(pid=process.pid)
        assert words_of_state(status) == "training"
        process.kill()
        # Nobody has asked for its exit code yet: it is a zombie, whose number is still taken.
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()
        assert words_of_state(status) == "no longer running"
    finally:
        process.kill()
        process.wait()
    assert words_of_state(status) == "no longer running"


def test_a_silent_run_is_no_longer_running_and_an_ended_one_stays_what_it_is() -> None:
    now = 1000.0
    silent = make_status(time_seconds=now - SILENT_SECONDS - 0.1)
    assert not is_running(silent, now_seconds=now)
    assert is_running(make_status(time_seconds=now - SILENT_SECONDS), now_seconds=now)
    # The writer's clock is ahead of the reader's.
    assert is_running(make_status(time_seconds=now + 60), now_seconds=now)
    ended = make_status(time_seconds=0.0, state="stopped")
    assert not is_running(ended, now_seconds=now) and words_of_state(ended, now_seconds=now) == "stopped"


def test_a_run_that_starts_may_be_silent_for_minutes() -> None:
    status = starting(step=3, total_steps=40)
    began = status["time_seconds"]
    assert words_of_state(status, now_seconds=began + 500) == "starting"
    assert words_of_state(status, now_seconds=began + 601) == "no longer running"


def test_the_process_of_another_host_is_not_looked_for_here() -> None:
    nobody = 2**22 + 1
    assert is_running(make_status(pid=nobody, host="another"))
    assert not is_running(make_status(pid=nobody))
