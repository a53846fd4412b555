"""The ablation's batches are as stale as the bound allows."""

from pathlib import Path

import pytest
from fakes.records import finish, make_queue, make_task

from asyncrl.replay.queue import ReplayQueue
from tests.benchmarks.stalest import choose_stalest


def test_a_batch_waits_until_all_that_the_bound_admits_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplayQueue, "choose", choose_stalest)
    queue = make_queue(tmp_path, batch=2, staleness=1)
    queue.announce(0)
    groups = [queue.admit(make_task(number)) for number in range(4)]
    for group in groups[:3]:
        finish(queue, group, version=0)
    assert queue.take(0) is None
    finish(queue, groups[3], version=0)
    assert queue.take(0) == groups[:2]
