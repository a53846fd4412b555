"""Columns of a step from texts and lengths of its responses: values counted by hand, and none are lost."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.records import generate, make_queue, make_score, make_task

from asyncrl.journal.connection import open_for_reading
from asyncrl.journal.responses import read_step_responses
from asyncrl.loops import Waits
from asyncrl.observe.metrics.step_metrics import StepResponses
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.reflection import ReflectionWords

TEXTS = ("Wait. But wait!", "so 3", "check", "")
REWARDS = (1.0, 1.0, 0.0, None)


def queue_with_a_batch(folder: Path) -> ReplayQueue:
    """One that the trainer took at version 0: four samples and a greedy baseline."""
    queue = make_queue(folder, batch=1, samples=4, has_greedy=True)
    queue.announce(0)
    group = queue.admit(make_task())
    generate(queue, group, version=0, num_tokens=3)
    for trajectory, reward, text in zip(group.trajectories, (*REWARDS, 0.0), (*TEXTS, "wait"), strict=True):
        queue.score(group, trajectory, make_score(reward), text)
    queue.make_ready(group, {t.trajectory_id: 0.0 for t in group.trajectories[:3]})
    assert queue.take(0) == [group]
    queue.journal.barrier_blocking()
    return queue


def responses_of(queue: ReplayQueue, *words: str) -> StepResponses:
    return StepResponses(queue.journal, ReflectionWords(words) if words else None, 4, Waits())


async def test_words_and_lengths_are_those_of_the_sampled_responses_with_a_verdict(tmp_path: Path) -> None:
    queue = queue_with_a_batch(tmp_path)
    responses = responses_of(queue, "wait", "but", "check")
    responses.begin(0)
    found = await responses.columns(0)
    assert found == {
        "response_tokens_mean_by_outcome": {"correct": 3.0, "fault": 3.0, "wrong": 3.0},
        "reflection_words_mean": 4 / 4,
        "reflection_words_share": 2 / 4,
        "reflection_words_mean_by_outcome": {"correct": 1.5, "fault": 0.0, "wrong": 1.0},
        "reflection_words_mean_by_word": {"wait": 0.5, "but": 0.25, "check": 0.25},
    }
    # Another step is not told these.
    assert await responses.columns(1) == {}
    assert await responses.columns(0) == found
    await responses.close()
    queue.journal.close()


async def test_a_step_whose_batch_is_given_again_by_a_later_process_has_them_too(tmp_path: Path) -> None:
    queue_with_a_batch(tmp_path).journal.close()
    again = make_queue(tmp_path, batch=1, samples=4, has_greedy=True)
    responses = responses_of(again, "wait")
    responses.begin(0)
    assert (await responses.columns(0))["reflection_words_mean"] == pytest.approx(0.5)
    await responses.close()
    again.journal.close()


async def test_all_groups_of_a_step_are_read_on_one_connection_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_with_a_batch(tmp_path)
    opened, num_open = [], 0

    @contextmanager
    def counted(path: Path) -> Iterator[sqlite3.Connection]:
        nonlocal num_open
        opened.append(path)
        with open_for_reading(path) as db:
            num_open += 1
            yield db
        num_open -= 1

    monkeypatch.setattr("asyncrl.journal.writer.open_for_reading", counted)
    assert [len(group) for group in read_step_responses(queue.journal, 0, num_samples=4)] == [4]
    responses = responses_of(queue, "wait")
    responses.begin(0)
    await responses.columns(0)
    assert (len(opened), num_open) == (2, 0)
    await responses.close()
    queue.journal.close()


async def test_without_words_there_are_lengths_alone(tmp_path: Path) -> None:
    queue = queue_with_a_batch(tmp_path)
    responses = responses_of(queue)
    responses.begin(0)
    assert (await responses.columns(0)).keys() == {"response_tokens_mean_by_outcome"}
    await responses.close()
    queue.journal.close()
