"""What a sample says of processes that cannot be looked into; /proc is played by hand."""

import pytest

from sandbox import watch

INIT, PROGRAM, CHILD = 10, 11, 12
EXITING = 0x04


def play(monkeypatch, *, flags, num_threads=1):
    """A program with a child process, whose descriptors only root may see."""

    def list_descriptors(path):
        if path == f"/proc/{CHILD}/fd":
            raise PermissionError(path)
        return []

    tree = {INIT: [PROGRAM], PROGRAM: [CHILD], CHILD: []}
    processes = {
        PROGRAM: watch._Process(PROGRAM, "S", 0, 0.0, 1, 1),
        CHILD: watch._Process(CHILD, "R", flags, 0.0, num_threads, 1),
    }
    monkeypatch.setattr(watch, "children", lambda pid: list(tree[pid]))
    monkeypatch.setattr(watch, "_status", processes.get)
    monkeypatch.setattr(watch.os, "listdir", list_descriptors)


def sample():
    return watch.look(
        INIT, watch.CpuTimes(), enough_tasks=9, seconds=1, enough_memory=1 << 30, directory=None
    )


def test_a_process_that_hides_its_descriptors_is_reported(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, flags=0)
    assert sample().hidden == {CHILD}


def test_a_process_that_is_exiting_does_not_hide(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, flags=EXITING)
    assert sample().hidden == set()


def test_a_process_whose_first_thread_alone_is_exiting_still_hides(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, flags=EXITING, num_threads=2)
    assert sample().hidden == {CHILD}
