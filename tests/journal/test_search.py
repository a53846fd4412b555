"""A text looked for in prompts and responses."""

import itertools
from pathlib import Path

from fakes.records import generate, make_queue, make_score, make_task

from asyncrl.journal.search import GROUPS_AT_ONCE, search_text
from asyncrl.replay.queue import ReplayQueue


def queue_of(folder: Path, texts: list[str]) -> ReplayQueue:
    """One group per text, which is its first response."""
    queue = make_queue(folder, batch=1000)
    queue.announce(0)
    for number, text in enumerate(texts):
        group = queue.admit(make_task(number))
        generate(queue, group, version=0)
        queue.score(group, group.trajectories[0], make_score(), text)
    queue.journal.barrier_blocking()
    return queue


def test_a_hit_says_where_it_is_the_newest_first(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, ["so x is 4% of it", "nothing", "SO X"])
    found = search_text(queue.journal, "so x")
    assert [(hit["trajectory_id"], hit["match"]) for hit in found.hits] == [
        ("00000002-00", "SO X"),
        ("00000000-00", "so x"),
    ]
    assert found.hits[1]["after"] == " is 4% of it" and found.searched_down_to == 0
    # The wildcards of SQL are letters like others.
    assert [hit["group_id"] for hit in search_text(queue.journal, "4%").hits] == [0]
    assert search_text(queue.journal, "4_").hits == []


def test_prompts_are_searched_too(tmp_path: Path) -> None:
    (hit,) = search_text(queue_of(tmp_path, ["", ""]).journal, "1+1=").hits
    assert (hit["group_id"], hit["trajectory_id"], hit["match"]) == (1, None, "1+1=")


def test_a_search_ends_when_its_time_is_over_and_is_continued_from_there(tmp_path: Path) -> None:
    count = 2 * GROUPS_AT_ONCE
    queue = queue_of(tmp_path, ["needle", *["hay"] * (count - 1)])
    ticks = itertools.count()
    first = search_text(queue.journal, "needle", seconds=1, clock=lambda: next(ticks))
    assert (first.hits, first.searched_down_to) == ([], GROUPS_AT_ONCE)
    second = search_text(queue.journal, "needle", below=first.searched_down_to)
    assert [hit["group_id"] for hit in second.hits] == [0] and second.searched_down_to == 0


def test_a_page_of_hits_ends_a_search(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, ["hay"] * (2 * GROUPS_AT_ONCE))
    found = search_text(queue.journal, "hay", limit=5)
    assert len(found.hits) == GROUPS_AT_ONCE == found.searched_down_to
