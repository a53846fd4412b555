"""The overview of all runs, and the head of one."""

from pathlib import Path

from asyncrl.page.overview import read_head
from asyncrl.page.runs import Run


def test_the_head_says_how_far_the_run_is(run_folder: Path) -> None:
    head = read_head(Run("sums", run_folder))
    assert head["fates"] == {"trained": 1, "queued": 1, "dropped: stale": 1}
    assert head["steps"] == [2, 2]
    assert (head["greedy_accuracy"], head["evaluated_step"]) == (0.8, 10)
