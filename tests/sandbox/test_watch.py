"""What a sample says of processes that cannot be looked into; /proc is played by hand."""

import pytest

from sandbox import watch

INIT, PROGRAM, CHILD = 10, 11, 12
EXITING = 0x04


def play(monkeypatch, *, flags, num_threads):
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


@pytest.mark.parametrize(
    ("flags", "num_threads", "hidden"),
    [
        (0, 1, {CHILD}),
        (EXITING, 1, set()),
        # Its first thread alone is exiting.
        (EXITING, 2, {CHILD}),
    ],
)
def test_a_process_that_hides_its_descriptors_is_reported_unless_it_is_exiting(
    flags: int, num_threads: int, hidden: set[int], monkeypatch: pytest.MonkeyPatch
):
    play(monkeypatch, flags=flags, num_threads=num_threads)
    times, limits = watch.CpuTimes(), {"enough_tasks": 9, "seconds": 1, "enough_memory": 1 << 30}
    assert watch.look(INIT, times, **limits, directory=None).hidden == hidden
