"""Stop strings on a real server: the tokens and log-probs are those without, up to the right token."""

import asyncio
import math
from pathlib import Path

import pytest
from fakes.process_owner import FakeProcesses
from fakes.records import make_queue, make_task

from asyncrl.loops import RunPhase, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Rollout
from asyncrl.records import Finish, SamplingParams, Trajectory
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import Limits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session

NUM_TOKENS = 100
ENDLESS = 1900
"""Tokens that take a server seconds: an abort comes before."""
TOLERANCE = 1e-4


async def generate(
    url: str, codec: TextCodec, folder: Path, *, limit: int = ENDLESS, **options: int
) -> tuple[list[Trajectory], dict[str, int]]:
    """The greedy answers of a group, and the fates of its tokens."""
    folder.mkdir()
    async with new_session() as session:
        queue, waits = make_queue(folder), Waits()
        queue._changed = waits.notify
        queue.announce(0)
        fleet = Fleet(
            [url],
            FleetSettings(max_running_requests=8),
            session=session,
            waits=waits,
            processes=FakeProcesses(),
        )
        fleet.members.serve_fixed(0)
        sampling = SamplingParams(0.0, limit, codec.stop_token_ids)
        generator = Generator(
            queue,
            fleet,
            waits,
            Limits(sampling, 2048, stop=codec.stop, **options),
            1,
            folder.name,
            state=RunPhase(waits),
        )
        async with asyncio.timeout(300):
            ended = [trajectory async for trajectory in generator.run(queue.admit(make_task()))]
        await fleet.members.close()
        return ended, queue.conservation()


def logprobs(trajectory: Trajectory) -> list[float]:
    return [logprob for segment in trajectory.segments for logprob in segment.behavior_logprobs]


@pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)
async def test_a_response_is_that_without_stop_strings_up_to_the_token_that_completes_one(
    shared_engine: tuple[str, list[Path]], tmp_path: Path
) -> None:
    url, (model, _) = shared_engine
    (whole, _), _ = await generate(url, TextCodec(model), tmp_path / "whole", limit=NUM_TOKENS)
    tokens = whole.response_tokens()
    assert (len(tokens), whole.finish) == (NUM_TOKENS, Finish.LENGTH)
    # Three tokens that end within the first chunk, across it and far behind it, unless they came before.
    for position in (5, 17, 60):
        text = TextCodec(model).decode(tokens[position - 3 : position])
        codec = TextCodec(model, rollout=Rollout(stop=[text]))
        end = next(n for n in range(NUM_TOKENS) if text in codec.decode(tokens[:n]))
        # No rounds; rounds that cut the stop string after its first and its second token.
        for name, rounds in (
            ("one", {}),
            ("first", {"tokens_per_round": end - 2}),
            ("second", {"tokens_per_round": end - 1}),
        ):
            ended, table = await generate(url, codec, tmp_path / f"{position}-{name}", **rounds)
            assert len(ended) == 2
            for trajectory in ended:
                assert (trajectory.response_tokens(), trajectory.finish) == (tokens[:end], Finish.STOP)
                assert logprobs(trajectory) == pytest.approx(logprobs(whole)[:end], abs=TOLERANCE)
                assert not any(map(math.isnan, logprobs(trajectory)))
                assert {segment.version for segment in trajectory.segments} == {0}
            assert table["generated"] == 2 * end + table.get("dropped: after_stop", 0)
            # The abort took effect: it did not write to its limit.
            assert table["generated"] < 2 * ENDLESS
