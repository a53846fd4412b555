"""Trajectories whose contexts the chat template renders: their branches, limits, rewards and restarts."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.episodes import FakeEpisodes
from fakes.fleets import generating
from fakes.records import make_queue, make_score, make_task, reopen
from turns.test_dialogue import make_codec

from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.packing import pack_places, sequences_of
from asyncrl.journal.queue_state import load_groups
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Algorithm
from asyncrl.recipe.sections.turns import Summarize, Turns
from asyncrl.records import (
    CREDITS,
    DropReason,
    EnvironmentSpec,
    Finish,
    RecordedCall,
    SamplingParams,
    Task,
    Trajectory,
)
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.credits import Shaping
from asyncrl.rollout.request_rules import OpenTurns, RequestRules
from asyncrl.rollout.told_task import conversation_in
from asyncrl.rollout.turn_player import TurnPlayer
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.history import RenderedHistory, Summaries

ASKED = {"role": "user", "content": "Guess."}
END = "<|im_end|>"
HEADER = "<|im_start|>assistant\n"


def thinking(number: int) -> str:
    return f"<think>\nthought {number}\n</think>\n\nguess {number}"


def plain(number: int) -> str:
    return f"guess {number}"


def three_turns(turn: int, text: str) -> Observation | End:
    return End(1.0, "guessed") if turn == 2 else Observation(f"not {turn}", reward=0.25)


@dataclasses.dataclass
class Run:
    player: TurnPlayer
    group: Group
    engine: FakeEngine
    codec: TextCodec

    @property
    def queue(self) -> ReplayQueue:
        return self.player.queue

    async def play(self) -> list[Trajectory]:
        return [trajectory async for trajectory in self.player.run(self.group)]

    def texts(self, trajectory: Trajectory) -> list[str]:
        """The whole text of each branch."""
        return [
            self.codec.exact_text([*line.prompt_tokens, *line.response_tokens()])
            for line in trajectory.lines()
        ]


def asked_by(codec: TextCodec) -> Task:
    text, tokens = codec.render_prompt([ASKED])
    game = EnvironmentSpec("game")
    return dataclasses.replace(
        make_task(), prompt=text, prompt_tokens=tokens, environment=game, messages=(ASKED,), row={"secret": 7}
    )


@asynccontextmanager
async def run_of(
    folder: Path,
    family: str,
    said: object = thinking,
    *,
    episodes: FakeEpisodes | None = None,
    is_rendered: bool = True,
    queue: ReplayQueue | None = None,
    max_new_tokens: int = 1000,
    context_tokens: int = 2000,
    samples: int = 2,
    max_turns: int = 8,
    summarize: Summarize | None = None,
) -> AsyncIterator[Run]:
    """The model's turn is `said` of its number in the context."""
    codec = make_codec(folder / "codec", family)

    def answers(prefix: list[int]) -> list[int]:
        before, _, begun = codec.exact_text(prefix).rpartition(HEADER)
        whole = codec.encode(said(before.count(HEADER)) + END, add_special_tokens=False)  # type: ignore[operator]
        return list(whole[len(codec.encode(begun, add_special_tokens=False)) :])

    engine = FakeEngine(num_tokens=10_000)
    engine.answers = answers
    queue = queue or make_queue(folder, samples=samples, batch=1)
    sampling = SamplingParams(1.0, max_new_tokens, codec.stop_token_ids)
    asked: dict[str, Any] = {"queue": queue, "task": asked_by(codec), "turns": OpenTurns()}
    async with generating(folder, sampling, engine=engine, context_tokens=context_tokens, **asked) as run:
        dialogue = Dialogue(codec, max_observed_tokens=512)
        conversations = Conversations(
            *(
                codec,
                dialogue,
                episodes or FakeEpisodes(three_turns),
                Turns(max_turns=max_turns, max_tool_seconds=60.0),
            ),
            clock=lambda: 0.0,
            history=RenderedHistory(dialogue) if is_rendered else None,
            summaries=None if summarize is None else Summaries(dialogue, summarize),
        )
        shaping = Shaping(Algorithm(), run.generator.limits)
        player = TurnPlayer(queue, run.generator, conversations, shaping, run.generator.waits)
        yield Run(player, run.group, engine, codec)


def lines_of(trajectory: Trajectory) -> list[object]:
    return [(line.trajectory_id, line.prompt_tokens, line.segments) for line in trajectory.lines()]


async def test_each_turn_after_a_rewritten_one_is_a_branch_with_the_context_that_the_template_writes(
    tmp_path: Path,
) -> None:
    async with run_of(tmp_path, "qwen3") as run:
        for trajectory in await run.play():
            assert [line.turns()[0] for line in trajectory.lines()] == [
                list(run.codec.encode(thinking(number) + END, add_special_tokens=False))
                for number in range(3)
            ]
            _, second, third = run.texts(trajectory)
            before = f"<|im_start|>user\nGuess.{END}\n{HEADER}guess 0{END}\n<|im_start|>user\nnot 0{END}\n"
            assert second == f"{before}{HEADER}{thinking(1)}{END}"
            before += f"{HEADER}guess 1{END}\n<|im_start|>user\nnot 1{END}\n"
            assert third == f"{before}{HEADER}{thinking(2)}{END}"
            assert trajectory.finish is Finish.STOP
        assert run.queue.conservation()["generated"] == run.group.num_tokens()
        assert len(run.engine.bodies) == 6 and not run.player.generator.limits.bounds
        run.queue.journal.barrier_blocking()
        assert read_conservation(run.queue.journal.path) == run.queue.conservation()


@pytest.mark.parametrize(("family", "said"), [("smollm2", thinking), ("qwen3", plain)])
async def test_a_template_that_rewrites_nothing_makes_the_trajectories_of_as_sampled(
    tmp_path: Path, family: str, said: object
) -> None:
    found = []
    for is_rendered in (True, False):
        (folder := tmp_path / str(is_rendered)).mkdir()
        async with run_of(folder, family, said, is_rendered=is_rendered) as run:
            found.append([lines_of(t) for t in sorted(await run.play(), key=lambda t: t.trajectory_id)])
            assert all(not trajectory.branches for trajectory in run.group.trajectories)
    assert found[0] == found[1]


async def test_thinking_is_dropped_once_and_a_branch_continues_where_the_template_keeps_it(
    tmp_path: Path,
) -> None:
    """Only the first turn thinks: the second begins a branch, which the third continues."""

    def first_thinks(number: int) -> str:
        return thinking(number) if number == 0 else plain(number)

    async with run_of(tmp_path, "qwen3", first_thinks) as run:
        (trajectory, _) = await run.play()
        first, branch = trajectory.lines()
        assert len(branch.turns()) == 2 and len(first.turn_lengths()) == 3
        assert "not 1" in run.codec.exact_text(branch.response_tokens())


async def test_one_verdict_trains_each_sampled_token_once_and_rewards_lie_in_their_branches(
    tmp_path: Path,
) -> None:
    async with run_of(tmp_path, "qwen3") as run:
        for trajectory in await run.play():
            length = trajectory.num_sampled_tokens()
            score = run.group.scores[trajectory.trajectory_id]
            assert score.credits == [(length - 1, 0.25), (2 * length - 1, 0.25)]
        run.queue.make_ready(run.group, {"00000000-00": 1.5, "00000000-01": -1.5})
        found = sequences_of(run.group)
        names = ["00000000-00", "00000000-00.1", "00000000-00.2"]
        assert [s.sequence_id for s in found[:3]] == names
        assert [s.advantage for s in found] == [1.5] * 3 + [-1.5] * 3
        earned = {CREDITS: pack_places([(length - 1, 0.25)], length)}
        assert [s.columns for s in found[:3]] == [earned, earned, {}]
        assert all(not sequence.observed for sequence in found)
        assert sum(s.num_sampled() for s in found) == run.queue.conservation()["queued"]
        assert run.queue.take(0) == [run.group]
        run.queue.journal.barrier_blocking()
        assert list(load_groups(run.queue.journal, 0)) == [found]


async def test_advantages_of_turns_go_with_the_branches_that_hold_them(tmp_path: Path) -> None:
    async with run_of(tmp_path, "qwen3") as run:
        (first, second) = await run.play()
        length = first.num_sampled_tokens()
        turns = {
            first.trajectory_id: [(length, 1.0), (length, 2.0), (length, 3.0)],
            second.trajectory_id: [(length, -1.0)] * 3,
        }
        run.queue.make_ready(run.group, {name: runs[0][1] for name, runs in turns.items()}, turns)
        found = sequences_of(run.group)
        assert [s.advantage for s in found] == [1.0, 2.0, 3.0, -1.0, -1.0, -1.0]
        assert all(not sequence.turn_advantages for sequence in found)
        run.queue.take(0)
        run.queue.journal.barrier_blocking()
        assert list(load_groups(run.queue.journal, 0)) == [found]
        rows = run.queue.journal.read(
            "SELECT advantage FROM trajectories ORDER BY sample, length(trajectory_id), trajectory_id"
        )
        assert [advantage for (advantage,) in rows] == [s.advantage for s in found]


async def killed(folder: Path, *, when: object) -> ReplayQueue:
    """The queue of a run that was killed at that moment, opened again."""
    async with run_of(folder, "qwen3", samples=1) as run:
        work = asyncio.create_task(run.play())
        (trajectory,) = run.group.trajectories
        while not when(trajectory, run):  # type: ignore[operator]
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        again = reopen(run.queue, folder, samples=1)
        again.live[0].task = asked_by(run.codec)
        return again


def in_the_second_branch(trajectory: Trajectory, run: Run) -> bool:
    return len(trajectory.branches) == 2 and trajectory.newest_line().num_turn_tokens() >= 4


def between_turns(trajectory: Trajectory, run: Run) -> bool:
    return len(trajectory.branches) == 1 and not trajectory.newest_line().segments


def before_an_answer(trajectory: Trajectory, run: Run) -> bool:
    return len(trajectory.branches) == 1 and bool(run.player.answering)


@pytest.mark.parametrize("when", [in_the_second_branch, between_turns, before_an_answer])
async def test_a_restart_continues_in_the_same_branches(tmp_path: Path, when: object) -> None:
    (whole := tmp_path / "whole").mkdir()
    async with run_of(whole, "qwen3", samples=1) as run:
        (undisturbed,) = await run.play()
    (cut := tmp_path / "cut").mkdir()
    queue = await killed(cut, when=when)
    num_before = queue.live[0].num_tokens()
    episodes = FakeEpisodes(three_turns)
    async with run_of(cut, "qwen3", queue=queue, episodes=episodes) as run:
        (trajectory,) = await run.play()
        assert (
            [(*each[:2], _joined(each[2])) for each in lines_of(trajectory)]
            == [  # type: ignore[index]
                (*each[:2], _joined(each[2]))
                for each in lines_of(undisturbed)  # type: ignore[index]
            ]
        )
        score = run.group.scores[trajectory.trajectory_id]
        assert score.outcome == "correct" and len(episodes.opened[0].texts) == 3
        table = queue.conservation()
        assert table["generated"] == run.group.num_tokens() + table.get("dropped: unconfirmed", 0)
        assert num_before < run.group.num_tokens()


def _joined(segments: list[object]) -> list[object]:
    """Tokens without the places where streams were cut."""
    return [
        (kind, list(itertools.chain.from_iterable(part.tokens for part in parts)))  # type: ignore[attr-defined]
        for kind, parts in itertools.groupby(segments, key=type)
    ]


async def test_all_branches_share_the_limit_of_new_tokens(tmp_path: Path) -> None:
    async with run_of(tmp_path, "qwen3") as run:
        run.player.generator.limits.max_turn_tokens = None
        (whole, _) = await run.play()
        length = whole.num_sampled_tokens()
    for limit, sizes in ((2 * length + 3, [length, length, 3]), (2 * length, [length, length, 0])):
        (folder := tmp_path / str(limit)).mkdir()
        async with run_of(folder, "qwen3", max_new_tokens=limit, episodes=endless()) as run:
            for trajectory in await run.play():
                assert [line.num_sampled_tokens() for line in trajectory.lines()][:3] == sizes
                assert trajectory.num_sampled_in_all() == limit and trajectory.finish is Finish.LENGTH
                assert len(trajectory.answer_tokens()) == next(size for size in reversed(sizes) if size)
            assert not run.group.scores


def endless() -> FakeEpisodes:
    return FakeEpisodes(lambda turn, text: Observation("again") if turn < 2 else End())


async def test_a_context_that_leaves_no_room_ends_the_trajectory(tmp_path: Path) -> None:
    long = FakeEpisodes(lambda turn, text: Observation("x" * 200))
    async with run_of(tmp_path, "qwen3", episodes=long, context_tokens=200) as run:
        for trajectory in await run.play():
            (first, branch) = trajectory.lines()
            assert trajectory.finish is Finish.LENGTH and not branch.segments
            assert len(branch.prompt_tokens) > 200 and trajectory.answer_tokens() == first.turns()[0]
            run.queue.score(run.group, trajectory, make_score(1.0), "text")
        run.queue.make_ready(run.group, {t.trajectory_id: 1.0 for t in run.group.trajectories})
        assert [s.sequence_id for s in sequences_of(run.group)] == ["00000000-00", "00000000-01"]


async def test_turns_of_all_branches_count_towards_the_limit_of_turns(tmp_path: Path) -> None:
    async with run_of(tmp_path, "qwen3", episodes=endless(), max_turns=2) as run:
        for trajectory in await run.play():
            assert len(trajectory.lines()) == 2 and trajectory.finish is Finish.LENGTH


async def test_a_long_trajectory_is_penalized_for_the_tokens_of_all_branches(tmp_path: Path) -> None:
    async with run_of(tmp_path, "qwen3") as run:
        (trajectory, _) = await run.play()
        length = trajectory.num_sampled_in_all()
        limits = run.player.generator.limits
        limits.sampling = dataclasses.replace(limits.sampling, max_new_tokens=length + 10)
        shaping = Shaping(Algorithm(overlong={"buffer_tokens": 20, "penalty": 1.0}), limits)
        assert shaping.of(make_score(1.0), trajectory, Finish.STOP).reward == 0.5


async def test_a_verifier_is_told_the_turns_of_all_branches(tmp_path: Path) -> None:
    async with run_of(tmp_path, "qwen3") as run:
        (trajectory, _) = await run.play()
        told = conversation_in(trajectory, run.codec)
        assert told.turns == tuple(thinking(number) for number in range(3))
        assert [messages[0]["content"] for messages in told.observations] == ["not 0", "not 1"]
        assert trajectory.turn_lengths() == [line.num_sampled_tokens() for line in trajectory.lines()]


async def test_a_branch_is_not_begun_by_another_version_where_a_trajectory_may_have_one(
    tmp_path: Path,
) -> None:
    queue = await killed(tmp_path, when=between_turns)
    tokens = queue.live[0].num_tokens()
    async with run_of(tmp_path, "qwen3", queue=queue) as run:
        (server,) = run.player.generator.fleet.members.servers.values()
        server.version, run.engine.version = 1, "1"
        run.player.generator.rules = RequestRules(ends_with_its_version=True)
        assert await run.play() == []
        assert run.group.reason is DropReason.OUTLIVED and not run.engine.bodies
        assert queue.conservation()["dropped: outlived"] == tokens


async def test_a_branch_asks_for_the_version_of_the_turn_before_it_or_a_newer_one(tmp_path: Path) -> None:
    async with run_of(tmp_path, "qwen3", samples=1) as run:
        (trajectory,) = await run.play()
        trajectory.segments[0] = dataclasses.replace(trajectory.segments[0], version=3)
        last = trajectory.newest_line()
        assert last.newest_version() == 0 and RequestRules().at_least(run.group, [last]) == 3
        # The branches of an agent run side by side.
        trajectory.calls = [RecordedCall(0, 0, "digest", 0, 0)]
        assert RequestRules().at_least(run.group, [last]) == 0
