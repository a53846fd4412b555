"""How a server comes to serve, with a trainer and without one, and which server never does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew, crew_on
from fakes.process_owner import FakeProcesses, at_once

from asyncrl.errors import ServerError
from asyncrl.loops import Waits
from asyncrl.model.unsampled import Unsampled
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.publication import Publication
from asyncrl.serving.server import ServerState
from asyncrl.serving.sglang.http import new_session

ROUTED, HEAD = "--enable-return-routed-experts", "--enable-fp32-lm-head"
SAMPLED = {"unsampled": Unsampled.parse("2,40-49")}


@pytest.fixture
async def fixed(one: FakeEngine, tmp_path: Path) -> AsyncIterator[Crew]:
    """A fleet of the first engine without a trainer: it serves what it was started with, as version 0."""
    waits, processes = Waits(), FakeProcesses(at_once)
    async with new_session() as session:
        fleet = Fleet(
            [one.url],
            FleetSettings(max_running_requests=10),
            session=session,
            waits=waits,
            processes=processes,
        )
        crew = Crew(fleet, waits, tmp_path, processes)
        one.version = "0"
        fleet.members.serve_fixed(0)
        yield crew
        await fleet.members.close()


async def test_a_server_without_a_trainer_serves_again_after_a_restart(fixed: Crew, one: FakeEngine) -> None:
    server = fixed.fleet.members.servers[one.url]
    salt = fixed.fleet.router.salt(server)
    one.is_ready = False

    async def start(url: str) -> None:
        one.is_ready = True

    fixed.processes.on_restart = start
    await fixed.fleet.members.suspect(server, ServerError("the stream broke"))
    await fixed.until_serving(1)
    assert (server.version, fixed.processes.done) == (0, [("restart", one.url)])
    # Nothing is known of the cache of the process before.
    assert fixed.fleet.router.salt(server) != salt


async def test_a_server_without_a_trainer_that_comes_back_with_other_weights_is_given_up(
    fixed: Crew, one: FakeEngine
) -> None:
    one.version = "7"
    server = fixed.fleet.members.servers[one.url]
    await fixed.fleet.members.suspect(server, ServerError("the stream broke"))
    await fixed.until(lambda: not fixed.fleet.members.has_hope())
    assert server.reason == f"{one.url} holds weight version 7, not 0"


async def test_a_server_that_joins_before_the_folder_is_written_waits_for_it(
    one: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one], tmp_path) as crew:
        place = tmp_path / "later"
        await crew.fleet.announce(Publication(0, place, {}), {})
        await crew.never(lambda: bool(crew.fleet.members.serving()))
        blockers = [str(wait.blocker) for wait in crew.waits.pending]
        assert "the folder of version 0, which the trainer writes" in blockers
        place.mkdir()
        Publication(0, place, {"a": "0" * 16}).write_manifest()
        await crew.until_serving(1)
        assert one.digests == {"a": "0" * 16}


async def test_a_folder_that_is_never_written_is_not_waited_for_once_the_next_one_is(
    one: FakeEngine, tmp_path: Path
) -> None:
    async with crew_on([one], tmp_path) as crew:
        await crew.fleet.announce(Publication(0, tmp_path / "lost", {}), {})
        await crew.never(lambda: bool(crew.fleet.members.serving()))
        await crew.announce(1)
        await crew.until_serving(1)
        assert one.version == "1"


async def test_a_server_whose_cache_cannot_hold_a_trajectory_never_serves(
    one: FakeEngine, tmp_path: Path
) -> None:
    one.cache_tokens = 107
    async with crew_on([one], tmp_path, longest_tokens=100) as crew:
        await crew.announce(0)
        await crew.until(lambda: not crew.fleet.members.has_hope())
        assert "107 tokens in its cache" in crew.fleet.members.servers[one.url].reason


@pytest.mark.parametrize(
    ("settings", "hooks", "said"),
    [
        # It samples other tokens.
        (
            SAMPLED,
            {"unsampled": "2"},
            "never samples the tokens '2', the run never samples '2,40-49': its log-probs",
        ),
        (SAMPLED, {}, "never samples the tokens 'none', the run never samples '2,40-49'"),
        (SAMPLED, {"unsampled": "2,40-49"}, ""),
        # It tells too few kept tokens.
        ({"top_k": 20}, {"most_kept": 19}, "says which tokens it kept up to 19"),
        ({"top_k": 20}, {"most_kept": 20}, ""),
        # Its output layer has another precision.
        (
            {"float32_head": True},
            {"options": []},
            "was started without --enable-fp32-lm-head, but model.float32_logits asks for a server with",
        ),
        ({"float32_head": False}, {"options": [HEAD]}, "was started with --enable-fp32-lm-head, but"),
        ({"float32_head": True}, {"options": [HEAD]}, ""),
        ({"float32_head": None}, {"options": [HEAD]}, ""),
        # It says no experts to a run that replays them.
        (
            {"returns_routes": True},
            {"options": []},
            f"was started without {ROUTED}, but algorithm.routing_replay is rollout",
        ),
        ({"returns_routes": True}, {"options": [ROUTED]}, ""),
        # It has other kernels.
        (
            {"is_bitwise": True},
            {"bitwise": False},
            "was started without ASYNCRL_BITWISE_AGREEMENT=1, but model.bitwise_agreement asks",
        ),
        ({"is_bitwise": False}, {"bitwise": True}, "was started with ASYNCRL_BITWISE_AGREEMENT=1, but"),
        ({"is_bitwise": True}, {"bitwise": True}, ""),
    ],
)
async def test_a_server_that_differs_from_the_run_never_serves(
    one: FakeEngine, tmp_path: Path, settings: dict[str, Any], hooks: dict[str, Any], said: str
) -> None:
    one.hooks |= hooks
    async with crew_on([one], tmp_path, **settings) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        wanted = ServerState.DEAD if said else ServerState.SERVING
        await crew.until(lambda: server.state is wanted)
        assert said in server.reason
        assert ("/update_weights_from_disk" in one.calls) is not bool(said)


APPLIED = {"sglang": "0.5.23", "process": "1", "num_ranks": 1, "options": [], "hooks": {"a.b": True}}


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({}, "has no asyncrl plugin: the hook sglang.srt.entrypoints.http_server._setup_and_run_http_server"),
        (
            APPLIED | {"hooks": {"a.b": True, "c.d": False}},
            "runs SGLang 0.5.23, to which 1 hook(s) of asyncrl did not apply: c.d.",
        ),
        (
            APPLIED | {"sglang": "0.6.0"},
            "runs SGLang 0.6.0; asyncrl's hooks, such as a.b, are written for SGLang 0.5.23.",
        ),
        (
            APPLIED | {"options": ["--model-path", "--speculative-algorithm"]},
            "was started with --speculative-algorithm: asyncrl's hooks give each token the version of",
        ),
        ({"hooks": 3}, "expected hooks"),
    ],
)
async def test_a_server_without_all_hooks_never_serves(
    one: FakeEngine, tmp_path: Path, hooks: dict[str, object], said: str
) -> None:
    one.hooks = hooks
    async with crew_on([one], tmp_path) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        await crew.until(lambda: server.state is ServerState.DEAD)
        assert said in server.reason and one.url in server.reason
        assert "/update_weights_from_disk" not in one.calls
