"""A run whose trajectories have several turns: one calls tools, one is answered by an environment."""

import struct
from pathlib import Path

import yaml
from fakes.browsed_run import Words
from fakes.records import make_queue, make_score, make_task
from fakes.turns import called, play_turns, told

from asyncrl.journal.statements import trained_tokens
from asyncrl.records import Segment, TrainedTokens, Trajectory
from asyncrl.replay.queue import ReplayQueue

HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b>"
"""Printed by a tool."""
LONG = "a_result_that_no_window_has_room_for_" * 300


def write_turned_run(folder: Path, name: str = "turns") -> Path:
    """The run folder, next to its model, in `folder`. Group 0 is trained by step 1."""
    run = folder / name
    run.mkdir(parents=True)
    queue, words = make_queue(run, batch=1), Words()
    queue.announce(0)
    group = queue.admit(make_task())
    first, second = group.trajectories
    five = called("calculator", {"expression": "2+3"}, "5", tokens=words("the tool says 5"))
    failed = called("search", {"query": HOSTILE, "top": 3}, HOSTILE, tokens=words(HOSTILE), is_error=True)
    long = called("search", {"query": "more"}, LONG, tokens=words(LONG))
    turns = [(said(words, "First I add"), five), (said(words, "then I look"), failed)]
    play_turns(queue, group, first, [*turns, (said(words, "once more"), long)], said(words, "It is done"))
    again = told("try again", tokens=words("user : try again"), reward=0.25)
    play_turns(queue, group, second, [(said(words, "I guess 7"), again)], said(words, "I guess 8"))
    for trajectory, reward in ((first, 1.0), (second, 0.0)):
        queue.score(group, trajectory, make_score(reward), "text")
    queue.make_ready(group, {first.trajectory_id: 0.5, second.trajectory_id: -0.5})
    queue.take(0)
    record(queue, first)
    queue.commit(1, "step-1")
    queue.journal.barrier_blocking()
    queue.journal.close()
    words.save(folder / "model")
    recipe = {"name": name, "model": {"path": str(folder / "model")}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return run


def said(words: Words, text: str) -> list[Segment]:
    tokens = words(text)
    return [Segment(0, tokens, [-0.5] * len(tokens))]


def record(queue: ReplayQueue, trajectory: Trajectory) -> None:
    """A log-ratio per sampled token: a tenth of its number."""
    size = trajectory.num_sampled_tokens()
    ratios = struct.pack(f"<{size}e", *(number / 10 for number in range(size)))
    entropies = struct.pack(f"<{size}e", *[1.0] * size)
    queue.journal.write(*trained_tokens([TrainedTokens(trajectory.trajectory_id, ratios, entropies)], 0))
