"""Stop strings on a real server: the tokens and log-probs are those without, up to the right token."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from fakes.fleets import restart
from fakes.records import make_queue, make_task
from serving.engine.servers import VOCABULARY, running_server, write_model

from asyncrl.recipe import Rollout
from asyncrl.records import Finish, SamplingParams, Trajectory
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.text import TextCodec
from asyncrl.run_state import RunState
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.sglang import new_session
from asyncrl.waits import Waits

LIMIT = 400
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stop")
    model = write_model(folder / "model", seed=0)
    # Nothing but a stop string may end a response, and a greedy one might meet the end token early.
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(settings | {"eos_token_id": 10 * VOCABULARY}))
    with running_server(model, folder / "log", max_running_requests=8) as (url, _):
        yield url, model


async def generate(
    url: str, codec: TextCodec, folder: Path, **options: int
) -> tuple[list[Trajectory], dict[str, int]]:
    """The greedy answers of a group, and the fates of its tokens."""
    folder.mkdir()
    async with new_session() as session:
        queue, waits = make_queue(folder), Waits()
        queue._changed = waits.notify
        queue.announce(0)
        fleet = Fleet([url], session=session, waits=waits, max_running_requests=8, restart=restart)
        fleet.serve_fixed(0)
        sampling = SamplingParams(0.0, LIMIT, codec.stop_token_ids)
        generator = Generator(
            queue,
            fleet,
            waits,
            sampling,
            2048,
            60.0,
            1,
            folder.name,
            state=RunState(waits),
            stop=codec.stop,
            **options,
        )
        async with asyncio.timeout(120):
            ended = [trajectory async for trajectory in generator.run(queue.admit(make_task()))]
        await fleet.close()
        return ended, queue.conservation()


def logprobs(trajectory: Trajectory) -> list[float]:
    return [logprob for segment in trajectory.segments for logprob in segment.behavior_logprobs]


async def test_a_response_is_that_without_stop_strings_up_to_the_token_that_completes_one(
    engine, tmp_path: Path
) -> None:
    url, model = engine
    (whole, _), _ = await generate(url, TextCodec(model), tmp_path / "whole")
    tokens = whole.response_tokens()
    assert (len(tokens), whole.finish) == (LIMIT, Finish.LENGTH)
    # Three tokens that end within the first chunk, across it and far behind it, unless they came before.
    for position in (5, 17, 60):
        text = TextCodec(model).decode(tokens[position - 3 : position])
        codec = TextCodec(model, rollout=Rollout(stop=[text]))
        end = next(n for n in range(LIMIT) if text in codec.decode(tokens[:n]))
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
            assert table["generated"] < 2 * LIMIT
