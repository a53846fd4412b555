"""Why a trajectory was trained or dropped, in sentences."""

from pathlib import Path

import pytest
from fakes.records import generate, make_queue, make_score, make_task

from asyncrl.commands import main as cli
from asyncrl.journal.explain import EXPLANATIONS
from asyncrl.records import DropReason, Finish, Segment
from asyncrl.replay.queue import ReplayQueue


@pytest.fixture
def queue(tmp_path: Path) -> ReplayQueue:
    """Group 0 is taken by step 2 (from 1), group 1 dropped, group 2 being generated."""
    queue = make_queue(tmp_path, batch=1, samples=3, staleness=2)
    queue.announce(0)
    taken, dropped, _ = (queue.admit(make_task(number)) for number in range(3))
    first, second, third = taken.trajectories
    queue.stream_from("http://a:1", taken.trajectories)
    queue.append(taken, first, [Segment(0, [1, 2], [-0.5] * 2)], None)
    queue.stream_from("http://b:2", [first])
    queue.append(taken, first, [Segment(1, [3], [-0.5], True)], Finish.STOP)
    queue.append(taken, second, [Segment(0, [4], [-0.5])], Finish.LENGTH)
    queue.append(taken, third, [Segment(0, [5], [-0.5])], Finish.STOP)
    for trajectory, reward in ((first, 1.0), (second, 0.0), (third, None)):
        queue.score(taken, trajectory, make_score(reward), "text")
    queue.make_ready(taken, {first.trajectory_id: 0.5, second.trajectory_id: -0.5})
    queue.num_steps_taken = 1
    queue.announce(1)
    generate(queue, dropped, version=0)
    queue.drop(dropped, DropReason.SERVER)
    assert queue.take(1) == [taken]
    queue.journal.barrier_blocking()
    return queue


def journal(folder: Path, *arguments: str) -> int:
    return cli.main(["journal", str(folder), *arguments])


def test_a_trained_trajectory_is_told_from_admission_to_checkpoint(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.commit(2, "step-2")
    queue.journal.barrier_blocking()
    assert journal(tmp_path, "--trajectory", "00000000-00") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Trajectory 00000000-00 is sample 0 of group 0 (task train:0).",
        "Its group was admitted at 1970-01-01 00:00:00 UTC, at version 0 of the trainer.",
        "Streamed from http://a:1 at 1970-01-01 00:00:00 UTC, 0 tokens in.",
        "Moved to http://b:2 at 1970-01-01 00:00:00 UTC, 2 tokens in.",
        "3 tokens: 2 by version 0, 1 by version 1 over keys and values of an older one. It ended by itself.",
        "Its verdict was correct, reward 1, after 0.001 s; the answer read was '2'.",
        "Its advantage over its group was +0.5000.",
        "At its step its tokens were 0 to 1 version(s) old.",
        "The group was trained in step 2; the checkpoint of version 2 made that durable at "
        "1970-01-01 00:00:00 UTC.",
    ]


def test_a_fault_is_told_as_what_left_before_the_baseline(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert journal(tmp_path, "--trajectory", "00000000-02") == 0
    assert "It left its group before the baseline, without a verdict" in capsys.readouterr().out


def test_a_dropped_group_says_the_reason(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert journal(tmp_path, "--group", "1") == 0
    output = capsys.readouterr().out
    assert "dropped (server): servers kept failing on it until rollout.max_fault_retries was spent" in output
    assert "00000001-02  no verdict yet, no advantage. 3 tokens: 3 by version 0." in output
    assert DropReason.SERVER in EXPLANATIONS and set(EXPLANATIONS) == set(DropReason)


def test_what_is_under_way_is_told_as_such(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert journal(tmp_path, "--group", "2") == 0
    assert "being generated" in capsys.readouterr().out
    assert journal(tmp_path, "--trajectory", "00000000-01") == 0
    assert "taken for step 2; no checkpoint holds that step yet" in capsys.readouterr().out


def test_the_table_accounts_for_every_token(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert journal(tmp_path) == 0
    output = capsys.readouterr().out
    # 3 + 1 taken, 1 without a verdict, 9 of the dropped group.
    rows = {line[:24].strip(): line[24:].split() for line in output.splitlines()}
    assert rows["taken"][0] == "4" and rows["dropped: fault"][0] == "1"
    assert rows["dropped: server"][0] == "9" and rows["generated"][0] == "14"
    assert "Every generated token is accounted for." in output


def test_what_is_not_there_is_said(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert journal(tmp_path, "--group", "9") == 2
    assert journal(tmp_path, "--trajectory", "x") == 2
    assert journal(tmp_path / "none") == 2
    error = capsys.readouterr().err
    assert "holds no group 9" in error and "holds no trajectory x" in error
    assert "no journal of a run at" in error
