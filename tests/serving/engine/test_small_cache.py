"""A real server whose cache holds a small part of what it is asked for: requests wait, and none is lost."""

import asyncio

import pytest
from fakes.process_owner import FakeProcesses
from fakes.records import make_queue, make_task
from serving.engine.servers import VOCABULARY, running_server, write_model

from asyncrl.errors import ServerError
from asyncrl.loops import RunPhase, Waits
from asyncrl.records import SamplingParams, Trajectory
from asyncrl.replay.group import Group
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import Limits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang import health, http
from asyncrl.serving.sglang.messages import Prefix, generate_body, stream

pytestmark = pytest.mark.exhaustive

CACHE_TOKENS = 200
RESPONSE_TOKENS = 90
SAMPLES = 8
GROUPS = 3


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small-cache")
    # Never sampled: every response is as long as it may be.
    model = write_model(folder / "model", seed=0, stop=VOCABULARY)
    # The engine then begins requests that its cache cannot hold to their ends, and has to take some back.
    eager = ("--schedule-conservativeness", "0.05")
    sizes = {"max_total_tokens": CACHE_TOKENS, "max_running_requests": 64}
    with running_server(model, folder / "log", *eager, **sizes) as (url, _):
        yield url


async def test_all_trajectories_end_without_a_restart_while_most_of_them_wait(url, tmp_path):
    queue, waits = make_queue(tmp_path, batch=GROUPS, samples=SAMPLES), Waits()
    queue.announce(0)
    async with http.new_session() as session:
        fleet = Fleet(
            [url],
            FleetSettings(max_running_requests=64, silence_seconds=20.0),
            session=session,
            waits=waits,
            processes=FakeProcesses(),
        )
        fleet.members.serve_fixed(0)
        (server,) = fleet.members.serving()
        server.capacity = await health.capacity(session, url)
        assert server.capacity.cache_tokens == CACHE_TOKENS
        sampling = SamplingParams(1.0, RESPONSE_TOKENS, (VOCABULARY,))
        generator = Generator(queue, fleet, waits, Limits(sampling, 2048), 0, "run", state=RunPhase(waits))

        async def run(group: Group) -> list[Trajectory]:
            return [trajectory async for trajectory in generator.run(group)]

        groups = [queue.admit(make_task(number)) for number in range(GROUPS)]
        ended = await asyncio.gather(*map(run, groups))
        await fleet.members.close()
    assert [len(trajectories) for trajectories in ended] == GROUPS * [SAMPLES]
    assert all(trajectory.finish is not None for group in groups for trajectory in group.trajectories)
    assert (server.held_tokens, server.expected_tokens, server.num_running) == (0, 0, 0)
    generated, dropped = (
        queue.counters["tokens_generated"],
        queue.counters.get("tokens_dropped:unconfirmed", 0),
    )
    assert generated == sum(t.num_response_tokens() for g in groups for t in g.trajectories)
    assert dropped == 0
    assert server.num_retractions > 0


async def test_a_prompt_that_the_cache_cannot_take_is_refused_and_the_server_lives_on(url):
    async def ask(num_tokens: int, name: str) -> int:
        body = generate_body(
            [Prefix(name, [5] * num_tokens, 4)], SamplingParams(1.0, 4, (VOCABULARY,)), salt="s"
        )
        return sum([len(chunk.tokens) async for chunk in stream(session, url, body)])

    async with http.new_session() as session:
        for number in range(2):
            with pytest.raises(ServerError, match="was refused: Input length"):
                await ask(CACHE_TOKENS, f"long-{number}")
        assert await ask(CACHE_TOKENS - 8, "fits") > 0
