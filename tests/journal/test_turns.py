"""Trajectories of several turns, as the journal's readers tell them."""

from pathlib import Path

import pytest
from fakes.records import make_queue, make_score, make_task
from fakes.turns import called, play_turns, told

from asyncrl.commands import main as cli
from asyncrl.journal.compaction import compact
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.search import search_text
from asyncrl.records import DropReason, Finish, Observed, Segment
from asyncrl.replay.queue import ReplayQueue

TWO = [Segment(0, [1, 2], [-0.5, -0.5])]
ONE = [Segment(1, [5], [-0.5])]


@pytest.fixture
def queue(tmp_path: Path) -> ReplayQueue:
    """One group: a trajectory that calls tools, and one that an environment answers."""
    queue = make_queue(tmp_path, batch=1)
    queue.announce(0)
    group = queue.admit(make_task())
    first, second = group.trajectories
    five = called("calculator", {"expression": "2+3"}, "5", tokens=[40, 41, 42])
    failed = called("calculator", {"expression": "ü_%/0"}, "division by zero", tokens=[43], is_error=True)
    play_turns(queue, group, first, [(TWO, five), (ONE, failed)], ONE)
    play_turns(queue, group, second, [(TWO, told("try again", tokens=[44], reward=0.25))], [], Finish.LENGTH)
    for trajectory in group.trajectories:
        queue.score(group, trajectory, make_score(), "the last turn")
    queue.journal.barrier_blocking()
    return queue


def test_observations_stand_beside_the_sampled_segments(queue: ReplayQueue) -> None:
    journal = JournalReader(queue.journal.path)
    group = journal.group(0)
    assert group is not None
    first, second = group["trajectories"]
    assert [(s["position"], len(s["tokens"])) for s in first["segments"]] == [(0, 2), (5, 1), (7, 1)]
    five, failed = first["observations"]
    assert (five["position"], five["turn"], five["tokens"]) == (2, 0, [40, 41, 42])
    assert five["calls"] == [
        {
            "name": "calculator",
            "arguments": {"expression": "2+3"},
            "error": "",
            "output": "5",
            "is_error": False,
        }
    ]
    assert failed["calls"][0]["is_error"] and not failed["messages"]
    (answer,) = second["observations"]
    assert answer["messages"] == [{"role": "user", "text": "try again"}]
    assert (answer["reward"], answer["seconds"], answer["calls"]) == (0.25, 0.5, [])


def test_sampled_and_observed_tokens_of_a_group_are_counted_apart(queue: ReplayQueue) -> None:
    journal = JournalReader(queue.journal.path)
    (row,) = journal.groups(GroupFilter())
    assert (row["tokens"], row["observed_tokens"], row["num_trajectories"]) == (6, 5, 2)
    queue.drop(queue.live[0], DropReason.NO_SIGNAL)
    queue.journal.write(*compact(0, 1))
    queue.journal.barrier_blocking()
    (row,) = journal.groups(GroupFilter())
    assert (row["tokens"], row["observed_tokens"]) == (6, None)


def test_turns_are_told_in_sentences(
    queue: ReplayQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["journal", str(tmp_path), "--trajectory", "00000000-00"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("4 tokens"))
    assert lines[place : place + 4] == [
        "4 tokens: 2 by version 0, 2 by version 1. 4 observed tokens in 2 answers to turns, which no policy "
        "sampled. It ended by itself.",
        "Turn 1: 2 tokens, ended by itself; it called calculator(expression='2+3'), which answered '5' in "
        "0.003 s: 3 observed tokens.",
        "Turn 2: 1 token, ended by itself; it called calculator(expression='ü_%/0'), which failed with "
        "'division by zero' in 0.003 s: 1 observed token.",
        "Turn 3: 1 token, the last turn.",
    ]
    assert cli.main(["journal", str(tmp_path), "--trajectory", "00000000-01"]) == 0
    told_lines = capsys.readouterr().out
    assert "the answer was 'try again' in 0.5 s, with a reward of 0.25: 1 observed token." in told_lines
    assert "Turn 2 has no token: what was observed left no room" in told_lines
    assert cli.main(["journal", str(tmp_path), "--group", "0"]) == 0
    assert "1 observed token in an answer to a turn" in capsys.readouterr().out


def test_a_search_finds_calls_and_answers_and_no_names_of_fields(queue: ReplayQueue) -> None:
    def found(text: str) -> list[tuple[str | None, bool, str]]:
        hits = search_text(queue.journal, text).hits
        return [(hit["trajectory_id"], hit["is_observed"], hit["match"]) for hit in hits]

    assert found("TRY AGAIN") == [("00000000-01", True, "try again")]
    assert found("2+3") == [("00000000-00", True, "2+3")]
    assert found("ü_%/") == [("00000000-00", True, "ü_%/")]
    assert found("seconds") == [] and found("messages") == []
    assert [is_observed for _, is_observed, _ in found("the last turn")] == [False, False]


def test_notes_that_are_no_json_cost_their_words_alone(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1)
    queue.announce(0)
    group = queue.admit(make_task())
    play_turns(queue, group, group.trajectories[0], [(TWO, Observed([40], '{"seconds": 1, "mess'))], ONE)
    queue.journal.barrier_blocking()
    read = JournalReader(queue.journal.path).group(0)
    assert read is not None
    (observation,) = read["trajectories"][0]["observations"]
    assert (observation["tokens"], observation["seconds"], observation["calls"]) == ([40], None, [])
    assert search_text(queue.journal, "mess").hits == []
    assert cli.main(["journal", str(tmp_path), "--trajectory", "00000000-00"]) == 0
