"""Stop strings on servers that know only tokens: the controller ends the request and keeps what counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Generating, generating
from fakes.model_folder import write_tokenizer
from fakes.records import reopen

from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Rollout
from asyncrl.records import Finish, SamplingParams, Segment, Trajectory
from asyncrl.replay.queue import ReplayQueue

SCRIPT = "12+3=15;;question 4+4=8;;question 9+9=18;;question 1+1=2" + "z" * 5000
LIMIT = 4000
KEPT = "12+3=15;;question"


@dataclass
class Scene(Generating):
    codec: TextCodec

    def text(self, trajectory: Trajectory) -> str:
        return self.codec.decode(trajectory.response_tokens())


@asynccontextmanager
async def scene(
    folder: Path,
    *stop: str,
    queue: ReplayQueue | None = None,
    engine: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Scene]:
    """One server that writes SCRIPT, whatever it is asked, and a generator with these stop strings."""
    codec = TextCodec(write_tokenizer(folder / "model"), rollout=Rollout(stop=list(stop)))
    server = FakeEngine(num_tokens=5000, **(engine or {}))
    server.script = list(codec.encode(SCRIPT))
    asked: dict[str, Any] = {"queue": queue, "limits": {"stop": codec.stop, **options}}
    sampling = SamplingParams(1.0, LIMIT, codec.stop_token_ids)
    async with generating(folder, sampling, engine=server, context_tokens=5000, **asked) as run:
        yield Scene(**vars(run), codec=codec)
        assert run.fleet.router.num_in_flight == 0
        table = run.queue.conservation()
        held = sum(t.num_response_tokens() for group in run.queue.live.values() for t in group.trajectories)
        assert table["generated"] == held + table.get("dropped: after_stop", 0)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 16, 64])
@pytest.mark.parametrize("confirms_chunks", [True, False])
async def test_a_response_ends_with_the_stop_string_whatever_the_chunks(
    tmp_path: Path, chunk_tokens: int, confirms_chunks: bool
) -> None:
    engine = {"chunk_tokens": chunk_tokens, "confirms_chunks": confirms_chunks}
    async with scene(tmp_path, ";;question", "never", engine=engine) as here:
        ended = await here.ended()
        assert [here.text(t) for t in ended] == [KEPT, KEPT]
        assert [t.finish for t in ended] == [Finish.STOP, Finish.STOP]
        for trajectory in ended:
            assert [(s.version, len(s.tokens), len(s.behavior_logprobs)) for s in trajectory.segments] == [
                (0, len(KEPT), len(KEPT))
            ]
        # The servers were told, and did not write to the limit.
        assert len(here.engine.aborted) == 2
        assert here.queue.conservation()["generated"] < 2 * LIMIT


@pytest.mark.parametrize("tokens_per_round", [3, 8, 10, 16, 17, 18])
async def test_a_stop_string_that_two_requests_share_is_found(tmp_path: Path, tokens_per_round: int) -> None:
    # It has characters 7 to 16: rounds of 3, 8, 10 and 16 tokens cut it, one of 17 ends with it.
    async with scene(tmp_path, ";;question", tokens_per_round=tokens_per_round) as here:
        ended = await here.ended()
        assert [(here.text(t), t.finish) for t in ended] == [(KEPT, Finish.STOP)] * 2
        assert len(here.engine.bodies) == -(-len(KEPT) // tokens_per_round)


async def test_a_stop_string_whose_first_half_an_earlier_start_of_the_run_journaled_is_found(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, ";;question") as here:
        group = here.group
        prefix = list(here.codec.encode("12+3=15;;que"))
        for trajectory in group.trajectories:
            here.queue.append(group, trajectory, [Segment(0, prefix, [-0.5] * len(prefix))], None)
    async with scene(tmp_path, ";;question", queue=reopen(here.queue, tmp_path)) as again:
        ended = await again.ended()
        assert [(again.text(t), t.finish) for t in ended] == [(KEPT, Finish.STOP)] * 2
        assert [len(ids) for ids in again.engine.bodies[0]["input_ids"]] == [15, 15]


async def test_a_prefix_that_holds_a_stop_string_is_over(tmp_path: Path) -> None:
    async with scene(tmp_path, "=") as here:
        group = here.group
        prefix = list(here.codec.encode("12+3="))
        for trajectory in group.trajectories:
            here.queue.append(group, trajectory, [Segment(0, prefix, [-0.5] * 5)], None)
        assert [t.finish for t in await here.ended()] == [Finish.STOP, Finish.STOP]
        assert not here.engine.bodies


async def test_the_first_stop_string_counts_and_the_limit_only_before_it(tmp_path: Path) -> None:
    async with scene(tmp_path, "9+9", "+3") as here:
        assert [here.text(t) for t in await here.ended()] == ["12+3", "12+3"]
    async with scene(tmp_path / "other", "none of it") as here:
        ended = await here.ended()
        assert [(t.finish, t.num_response_tokens()) for t in ended] == [(Finish.LENGTH, LIMIT)] * 2
        assert not here.engine.aborted
