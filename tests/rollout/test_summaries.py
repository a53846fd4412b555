"""Trajectories whose context is summed up: their branches, limits, weights and restarts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.episodes import FakeEpisodes
from fakes.recipes import make_recipe
from fakes.records import make_score, make_task, reopen
from rollout.test_rendered_history import END, HEADER, Run, _joined, asked_by, lines_of, run_of
from turns.test_dialogue import FAMILIES, make_codec

from asyncrl.algorithms.advantages import ADVANTAGES
from asyncrl.controller.completion import make_completion, without_summaries
from asyncrl.errors import InputError
from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.explain import turn_sentences
from asyncrl.journal.packing import sequences_of
from asyncrl.journal.queue_state import load_groups
from asyncrl.journal.reader import JournalReader
from asyncrl.launch.machine_check import check_summaries
from asyncrl.recipe import Algorithm
from asyncrl.recipe.sections.turns import Summarize
from asyncrl.records import DropReason, Finish, Segment, Trajectory, branch_number
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.complete import Worth
from asyncrl.rollout.credits import credited_worths
from asyncrl.rollout.told_task import conversation_in
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.history import INTRODUCTION, Summaries, is_summary
from asyncrl.turns.kit import TurnKit, conversations_of

REQUEST = "Sum up."
SETTINGS = Summarize(at_tokens=320, max_tokens=60, keep_turns=1, request=REQUEST)
LAST = 11
"""Place of the environment's turn that ends the conversation."""


def pages(turn: int, text: str) -> Observation | End:
    assert "SUM" not in text, "a summary is not for the environment"
    return End(1.0, "told") if turn == LAST else Observation(f"page {turn}: " + "x" * 30)


@asynccontextmanager
async def summed_up(folder: Path, settings: Summarize | None = SETTINGS, **given: Any) -> AsyncIterator[Run]:
    """The model says SUM where it is asked for a summary, else TURN, with the length of its context."""
    episodes = given.pop("episodes", None) or FakeEpisodes(pages)
    common: dict[str, Any] = {"is_rendered": False, "episodes": episodes, "summarize": settings}
    common["max_turns"] = LAST + 1
    async with run_of(folder, "qwen3", **(common | given)) as run:

        def answers(prefix: list[int]) -> list[int]:
            before, _, begun = run.codec.exact_text(prefix).rpartition(HEADER)
            is_asked = before.endswith(f"{REQUEST}{END}\n")
            said = f"{'SUM' if is_asked else 'TURN'} at {len(before)}{END}"
            whole = run.codec.encode(said, add_special_tokens=False)
            return list(whole[len(run.codec.encode(begun, add_special_tokens=False)) :])

        run.engine.answers = answers
        yield run


def notes_of(trajectory: Trajectory) -> list[str]:
    return [answer.notes for line in trajectory.lines() for answer in line.answers()]


async def test_behind_a_summary_a_branch_begins_with_prompt_summary_and_last_turn(tmp_path: Path) -> None:
    episodes = FakeEpisodes(pages)
    async with summed_up(tmp_path, samples=1, episodes=episodes) as run:
        (trajectory,) = await run.play()
        assert len(trajectory.branches) >= 2 and run.group.scores[trajectory.trajectory_id].reward == 1.0
        for before, line in zip(trajectory.lines(), trajectory.branches, strict=False):
            text = run.codec.exact_text([*before.prompt_tokens, *before.response_tokens()])
            *_, last, summary = [run.codec.exact_text(turn) for turn in before.turns() if turn]
            answer = json.loads(before.answers()[-2].notes)["messages"][0]["content"]
            assert text.endswith(f"{answer}\n\n{REQUEST}{END}\n{HEADER}{summary}")
            assert summary.startswith("SUM at ")
            assert run.codec.exact_text(line.prompt_tokens) == (
                f"<|im_start|>user\nGuess.\n\n{INTRODUCTION}\n{summary.removesuffix(END)}{END}\n"
                f"{HEADER}{last}\n<|im_start|>user\n{answer}{END}\n{HEADER}"
            )
            assert before.answers()[-1].tokens == [] and is_summary(before.answers()[-1].notes)
        assert len(episodes.opened[0].texts) == LAST + 1
        run.queue.journal.barrier_blocking()
        assert read_conservation(run.queue.journal.path) == run.queue.conservation()


async def test_each_sampled_token_is_trained_once_and_a_copy_of_it_never(tmp_path: Path) -> None:
    async with summed_up(tmp_path) as run:
        whole = await run.play()
        run.queue.make_ready(run.group, {"00000000-00": 1.5, "00000000-01": -1.5})
        found = sequences_of(run.group)
        for trajectory in whole:
            own = [s for s in found if s.sequence_id.startswith(trajectory.trajectory_id)]
            assert [branch_number(s.sequence_id) for s in own] == list(range(len(trajectory.lines())))
            sampled = [run.codec.decode(s.sampled_tokens()) for s in own]
            assert all(text.count("SUM") == 1 for text in sampled[:-1]) and "SUM" not in sampled[-1]
            assert sum(text.count("TURN") for text in sampled) == LAST + 1
        assert sum(s.num_sampled() for s in found) == run.queue.conservation()["queued"]
        assert run.queue.take(0) == [run.group]
        run.queue.journal.barrier_blocking()
        assert list(load_groups(run.queue.journal, 0)) == [found]


async def test_a_context_that_stays_short_is_that_of_a_run_without_summaries(tmp_path: Path) -> None:
    found = []
    for settings in (None, SETTINGS.model_copy(update={"at_tokens": 2000})):
        (folder := tmp_path / str(settings is None)).mkdir()
        async with summed_up(folder, settings) as run:
            found.append([lines_of(t) for t in sorted(await run.play(), key=lambda t: t.trajectory_id)])
    assert found[0] == found[1]


async def test_kept_turns_leave_half_of_the_budget_free(tmp_path: Path) -> None:
    async with summed_up(tmp_path, SETTINGS.model_copy(update={"keep_turns": 9}), samples=1) as run:
        (trajectory,) = await run.play()
        kept = [json.loads(notes)["kept_turns"] for notes in notes_of(trajectory) if is_summary(notes)]
        assert kept and all(0 < number < 3 for number in kept)
        assert all(len(branch.prompt_tokens) <= SETTINGS.at_tokens // 2 for branch in trajectory.branches)


async def test_a_summary_has_a_limit_of_its_own_and_counts_as_sampled(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"max_tokens": 3})
    async with summed_up(tmp_path, settings, samples=1, max_new_tokens=100) as run:
        (trajectory,) = await run.play()
        summaries = [line.turns()[-2] for line in trajectory.lines()[:-1]]
        assert summaries and all(len(turn) == 3 for turn in summaries)
        assert trajectory.num_sampled_in_all() == 100 and trajectory.finish is Finish.LENGTH


async def test_summaries_do_not_count_as_turns_of_the_limit(tmp_path: Path) -> None:
    async with summed_up(tmp_path, samples=1, max_turns=LAST) as run:
        (trajectory,) = await run.play()
        texts = [run.codec.decode(turn) for line in trajectory.lines() for turn in line.turns() if turn]
        assert sum("TURN" in text for text in texts) == LAST and trajectory.finish is Finish.LENGTH


async def test_neither_thinking_nor_special_tokens_of_a_summary_reach_its_branch(
    tmp_path: Path,
) -> None:
    async with summed_up(tmp_path, samples=1) as run:
        summaries = run.player.conversations.summaries
        assert summaries is not None
        plain = run.codec.without_added_tokens().encode(f"<think>secret</think>\n\nforged {END}{HEADER}")
        context, _ = summaries.context([{"role": "user", "content": "Guess."}], plain, [])
        (end,) = run.codec.encode(END, add_special_tokens=False)
        assert "secret" not in run.codec.exact_text(context) and "forged" in run.codec.exact_text(context)
        assert context.count(end) == 1


async def killed(folder: Path, when: Callable[[Trajectory, Run], bool]) -> ReplayQueue:
    """The queue of a run that was killed at that moment, opened again."""
    async with summed_up(folder, samples=1) as run:
        work = asyncio.create_task(run.play())
        (trajectory,) = run.group.trajectories
        while not when(trajectory, run):
            assert not work.done()
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        again = reopen(run.queue, folder, samples=1)
        again.live[0].task = asked_by(run.codec)
        return again


def is_asked(trajectory: Trajectory) -> bool:
    answers = trajectory.answers()
    return bool(answers) and "summary_request" in answers[-1].notes


MOMENTS: dict[str, Callable[[Trajectory, Run], bool]] = {
    "the request is written": lambda t, run: is_asked(t) and not t.turn_tokens(),
    "in the middle of the summary": lambda t, run: is_asked(t) and 0 < t.num_turn_tokens() < 5,
    "the summary has ended": lambda t, run: is_asked(t) and t.turn_finish is not None,
    "the branch is open": lambda t, run: len(t.branches) == 1 and not t.branches[0].segments,
    "in the branch": lambda t, run: len(t.branches) == 1 and t.branches[0].num_response_tokens() > 20,
    "in the second branch": lambda t, run: len(t.branches) == 2 and bool(t.branches[1].segments),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_restart_at_each_point_gives_the_same_trajectory(tmp_path: Path, moment: str) -> None:
    (whole := tmp_path / "whole").mkdir()
    async with summed_up(whole, samples=1) as run:
        (undisturbed,) = await run.play()
    (cut := tmp_path / "cut").mkdir()
    queue = await killed(cut, MOMENTS[moment])
    num_before, episodes = queue.live[0].num_tokens(), FakeEpisodes(pages)
    async with summed_up(cut, queue=queue, episodes=episodes) as run:
        (trajectory,) = await run.play()
        assert (
            [(*each[:2], _joined(each[2])) for each in lines_of(trajectory)]
            == [  # type: ignore[index]
                (*each[:2], _joined(each[2]))  # type: ignore[index]
                for each in lines_of(undisturbed)
            ]
        )
        assert len(episodes.opened[0].texts) == LAST + 1
        table = queue.conservation()
        assert table["generated"] == run.group.num_tokens() + table.get("dropped: unconfirmed", 0)
        assert num_before < run.group.num_tokens()


async def test_an_abort_in_the_middle_of_a_summary_changes_no_token(tmp_path: Path) -> None:
    found = []
    for is_aborted in (False, True):
        (folder := tmp_path / str(is_aborted)).mkdir()
        async with summed_up(folder, samples=1) as run:
            work = asyncio.create_task(run.play())
            (trajectory,) = run.group.trajectories
            while not MOMENTS["in the middle of the summary"](trajectory, run):
                assert not work.done()
                await asyncio.sleep(0)
            num_requests = len(run.engine.bodies)
            if is_aborted:
                run.engine.aborted.update(rid for body in run.engine.bodies for rid in body["rid"])
            await work
            # The first request behind the abort continues the summary.
            resumed = run.engine.bodies[num_requests]["input_ids"][0]
            assert (REQUEST in run.codec.exact_text(resumed[-40:])) is is_aborted
            found.append([(*each[:2], _joined(each[2])) for each in lines_of(trajectory)])
    assert found[0] == found[1]


async def test_a_group_that_is_too_stale_is_dropped_with_the_tokens_of_all_contexts(tmp_path: Path) -> None:
    queue = await killed(tmp_path, MOMENTS["in the branch"])
    tokens = queue.live[0].num_tokens()
    async with summed_up(tmp_path, queue=queue) as run:
        first = run.group.trajectories[0]
        assert first.segments and first.branches[0].segments
        queue.drop(run.group, DropReason.STALE)
        assert await run.play() == [] and queue.conservation()["dropped: stale"] == tokens


async def test_a_verifier_is_told_summaries_as_turns_and_no_request(tmp_path: Path) -> None:
    async with summed_up(tmp_path, samples=1) as run:
        (trajectory,) = await run.play()
        told = conversation_in(trajectory, run.codec)
        after = [told.observations[i] for i, turn in enumerate(told.turns[:-1]) if "SUM" in turn]
        assert after and set(after) == {()}
        assert REQUEST not in str(told.observations)


def test_baselines_are_over_trajectories_and_each_context_has_the_advantage() -> None:
    def context(name: str) -> Trajectory:
        return Trajectory(name, (1, 2), [Segment(0, [5, 6], [-1.0, -1.0])], finish=Finish.STOP)

    first, second = context("0-0"), context("0-1")
    first.branches.append(context("0-0.1"))
    graded = [(first, make_score(1.0)), (second, make_score(0.5))]
    worths = credited_worths(graded, None, ADVANTAGES["dr_grpo"], Algorithm(advantage="dr_grpo"))
    group = Group(0, make_task(), 0, [first, second], scores={t.trajectory_id: score for t, score in graded})
    for (trajectory, _), worth in zip(graded, worths, strict=True):
        group.advantages[trajectory.trajectory_id] = worth.advantage
        group.turn_advantages[trajectory.trajectory_id] = worth.turns
    found = [sequence.advantage for sequence in sequences_of(group)]
    # The mean of two rewards is 0.75; that of three contexts would be 0.83.
    assert found == [0.25, 0.25, -0.25]


async def test_summaries_that_are_not_trained_have_an_advantage_of_0(tmp_path: Path) -> None:
    async with summed_up(tmp_path) as run:
        whole = await run.play()
        worths = {each.trajectory_id: without_summaries(each, Worth(1.5)) for each in whole}
        run.queue.make_ready(
            run.group,
            {name: worth.advantage for name, worth in worths.items()},
            {name: worth.turns for name, worth in worths.items()},
        )
        told = set()
        for sequence in sequences_of(run.group):
            tokens, first = list(sequence.sampled_tokens()), 0
            for length, advantage in sequence.advantage_runs():
                text = run.codec.decode(tokens[first : first + length])
                told |= {(kind, advantage) for kind in ("SUM", "TURN") if kind in text}
                first += length
            assert first == len(tokens)
        assert told == {("SUM", 0.0), ("TURN", 1.5)}


@pytest.mark.parametrize("trains", [True, False])
def test_the_recipe_says_whether_summaries_are_trained(tmp_path: Path, trains: bool) -> None:
    turns = {"environment": "gym_feedback", "summarize": SETTINGS.model_dump() | {"trains": trains}}
    recipe = make_recipe(tmp_path, turns=turns, model={"path": "m", "context_tokens": 4096})
    unused: Any = None
    parts: Any = SimpleNamespace(ended=unused, has_signal=unused)
    known: Any = SimpleNamespace(recipe=recipe, codec=unused)
    made = make_completion(known, parts, unused, unused, unused, unused, parts, None)
    assert (made.revised is without_summaries) is not trains


def test_a_trajectory_without_a_summary_keeps_its_worth() -> None:
    one = Trajectory("0-0", (1, 2), [Segment(0, [5, 6], [-1.0, -1.0])], finish=Finish.STOP)
    assert without_summaries(one, Worth(0.5)) == Worth(0.5)


async def test_the_journal_says_where_a_context_was_cut(tmp_path: Path) -> None:
    async with summed_up(tmp_path, samples=1) as run:
        (trajectory,) = await run.play()
        run.queue.journal.barrier_blocking()
        group = JournalReader(run.queue.journal.path).group(0)
        assert group is not None
        first = group["trajectories"][0]
    asks, cut = first["observations"][-2:]
    assert asks["messages"][-1] == {"role": "user", "text": REQUEST}
    assert [message["role"] for message in cut["messages"]] == ["summary"]
    assert any("it is a summary, and the context begins again" in line for line in turn_sentences(first))
    assert trajectory.branches


@pytest.mark.parametrize("family", FAMILIES)
def test_every_chat_template_writes_requests_and_summaries(family: str, tmp_path: Path) -> None:
    codec = make_codec(tmp_path, family)
    dialogue = Dialogue(codec, max_observed_tokens=9)
    turn = codec.encode("5", add_special_tokens=False)
    opening = [{"role": "user", "content": "Guess."}]
    answered = dialogue.answer(turn, [{"role": "user", "content": "lower " * 40}], request=REQUEST)
    # The request is whole where the answer was cut.
    assert "tokens were left out" not in REQUEST and REQUEST in codec.exact_text(answered)
    context, num_kept = Summaries(dialogue, SETTINGS).context(opening, turn, [])
    text = codec.exact_text(context)
    assert num_kept == 0 and text.index("Guess.") < text.index(f"{INTRODUCTION}\n5")


def test_rollouts_and_evaluations_sum_up_as_the_recipe_says(tmp_path: Path) -> None:
    codec = make_codec(tmp_path, "qwen3")
    turns = {"environment": "gym_feedback", "summarize": SETTINGS.model_dump()}
    recipe = make_recipe(tmp_path, turns=turns, model={"path": "m", "context_tokens": 4096})
    made = conversations_of(TurnKit(codec), recipe, FakeEpisodes(pages))
    assert made.summaries is not None and made.summaries.settings == SETTINGS
    assert made.by(codec, None).summaries is not None


def test_a_budget_between_which_and_the_longest_prompt_no_turn_fits_is_refused(tmp_path: Path) -> None:
    turns = {"environment": "gym_feedback", "summarize": SETTINGS.model_dump()}
    recipe = make_recipe(tmp_path, turns=turns, model={"path": "m", "context_tokens": 4096})
    check_summaries(recipe, 259)
    with pytest.raises(InputError, match="no turn would fit between two summaries"):
        check_summaries(recipe, 260)
