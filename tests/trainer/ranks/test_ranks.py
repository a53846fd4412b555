"""Ranks that wait for each other: a dead one is noticed in time, a slow first one is waited for."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.template import Forked, Template

from asyncrl.errors import RankLost
from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Trainer
from asyncrl.system.network import free_ports
from asyncrl.trainer.ranks import ranks

MODULE = "fakes.lonely_rank"
ENDED_SECONDS = 120
"""For a process to start, or to end after its timeout of 5 s, on a busy machine."""


@contextlib.contextmanager
def two_ranks(template: Template, folder: Path, work: str) -> Iterator[list[Forked]]:
    """Two real ranks over gloo, after they have met; their output goes to FOLDER/log-<rank>."""
    port = free_ports(1)[0]
    processes = []
    for rank in range(2):
        environment = os.environ | rank_environment(Trainer(num_processes=2), rank, port=port)
        with (folder / f"log-{rank}").open("wb") as log:
            arguments = [str(folder), work]
            processes.append(template.start(MODULE, arguments, environment=environment, output=log))
    try:
        deadline = time.monotonic() + ENDED_SECONDS
        while not all((folder / f"met-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline, (folder / "log-0").read_text()
            time.sleep(0.05)
        yield processes
    finally:
        for process in processes:
            # Some of them have ended.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("how", "victim", "work"),
    [
        pytest.param(signal.SIGKILL, 1, "sum", marks=pytest.mark.exhaustive),
        (signal.SIGKILL, 0, "alone"),
        (signal.SIGSTOP, 0, "sum"),
        pytest.param(signal.SIGSTOP, 1, "alone", marks=pytest.mark.exhaustive),
    ],
)
def test_when_one_of_two_ranks_dies_or_hangs_the_other_ends_and_says_so(
    how: signal.Signals, victim: int, work: str, template: Template, tmp_path: Path
) -> None:
    log = tmp_path / f"log-{1 - victim}"
    with two_ranks(template, tmp_path, work) as processes:
        processes[victim].send_signal(how)
        assert processes[1 - victim].wait(ENDED_SECONDS) == RankLost.EXIT_CODE, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert last.startswith(f"RankLost: rank {1 - victim} of 2 lost another rank: it died, or did not answer")
    assert "within 5 s (trainer.rank_timeout_seconds)" in last


@pytest.mark.exhaustive
def test_what_the_first_rank_does_alone_may_take_longer_than_the_timeout(
    template: Template, tmp_path: Path
) -> None:
    with two_ranks(template, tmp_path, "patience") as processes:
        assert [process.wait(ENDED_SECONDS) for process in processes] == [0, 0], (
            tmp_path / "log-1"
        ).read_text()
    assert [(tmp_path / f"result-{rank}").read_text() for rank in range(2)] == [
        "the result: [0, 1, 2, 3] and []"
    ] * 2


def test_other_errors_are_not_taken_for_a_lost_rank() -> None:
    assert ranks.lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")) is None
