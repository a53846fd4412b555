"""Tasks of reasoning-gym in several tries, graded by the package's own scorers."""

from collections.abc import AsyncIterator

import pytest
from fakes.gym import NEEDS_GYM, gym_gold

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.pool import EpisodePool

pytestmark = NEEDS_GYM


@pytest.fixture
async def pool() -> AsyncIterator[EpisodePool]:
    async with EpisodePool(timeout_seconds=60.0) as pool:
        yield pool


async def play(pool: EpisodePool, answers: list[str], **options: object) -> list[Observation | End]:
    episode = await pool.open(EnvironmentSpec("gym_feedback", options))
    await episode.start({"answer": gym_gold("leg_counting")})
    replies = [await episode.step(answer) for answer in answers]
    await episode.close()
    return replies


async def test_a_wrong_answer_gets_its_score_and_another_try(pool: EpisodePool) -> None:
    right = gym_gold("leg_counting")["entry"]["answer"]
    replies = await play(pool, ["<answer>x</answer>", "I do not know", f"<answer>{right}</answer>"])
    scored, unread, end = replies
    assert isinstance(scored, Observation) and isinstance(unread, Observation)
    assert "Your answer scores 0 of 1. You have 2 tries left." in str(scored.messages)
    assert "No answer was found" in str(unread.messages) and "one try left" in str(unread.messages)
    assert isinstance(end, End) and end.score == 1.0 and end.extracted == right


async def test_the_last_wrong_try_is_the_end(pool: EpisodePool) -> None:
    (_, end) = await play(pool, ["<answer>x</answer>"] * 2, num_tries=2)
    assert isinstance(end, End) and end.score == 0.0 and end.extracted == "x"
