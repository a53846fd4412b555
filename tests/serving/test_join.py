"""How a server comes to serve, with a trainer and without one, and which server never does."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew, crew_on
from fakes.process_owner import FakeProcesses, at_once

from asyncrl.errors import ServerError
from asyncrl.loops.waits import Waits
from asyncrl.model.unsampled import Unsampled
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.fleet_settings import FleetSettings
from asyncrl.serving.publication import Publication
from asyncrl.serving.server import ServerState
from asyncrl.serving.sglang.http import new_session

ROUTED = "--enable-return-routed-experts"


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
    ("hooks", "said"),
    [
        ({"unsampled": "2"}, "never samples the tokens '2', the run never samples '2,40-49': its log-probs"),
        ({}, "never samples the tokens 'none', the run never samples '2,40-49'"),
        ({"unsampled": "2,40-49"}, ""),
    ],
)
async def test_a_server_that_samples_other_tokens_never_serves(
    one: FakeEngine, tmp_path: Path, hooks: dict[str, str], said: str
) -> None:
    one.hooks |= hooks
    async with crew_on([one], tmp_path, unsampled=Unsampled.parse("2,40-49")) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        wanted = ServerState.DEAD if said else ServerState.SERVING
        await crew.until(lambda: server.state is wanted)
        assert said in server.reason
        assert ("/update_weights_from_disk" in one.calls) is not bool(said)


@pytest.mark.parametrize(("most_kept", "wanted"), [(19, ServerState.DEAD), (20, ServerState.SERVING)])
async def test_a_server_that_tells_too_few_kept_tokens_never_serves(
    one: FakeEngine, tmp_path: Path, most_kept: int, wanted: ServerState
) -> None:
    one.hooks["most_kept"] = most_kept
    async with crew_on([one], tmp_path, top_k=20) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        await crew.until(lambda: server.state is wanted)
        assert ("says which tokens it kept up to 19" in server.reason) is (wanted is ServerState.DEAD)


@pytest.mark.parametrize(
    ("float32_head", "options", "said"),
    [
        (
            True,
            [],
            "was started without --enable-fp32-lm-head, but model.float32_logits asks for a server with",
        ),
        (False, ["--enable-fp32-lm-head"], "was started with --enable-fp32-lm-head, but"),
        (True, ["--enable-fp32-lm-head"], ""),
        (None, ["--enable-fp32-lm-head"], ""),
    ],
)
async def test_a_server_whose_output_layer_has_another_precision_never_serves(
    one: FakeEngine, tmp_path: Path, float32_head: bool | None, options: list[str], said: str
) -> None:
    one.hooks |= {"options": options}
    async with crew_on([one], tmp_path, float32_head=float32_head) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        wanted = ServerState.DEAD if said else ServerState.SERVING
        await crew.until(lambda: server.state is wanted)
        assert said in server.reason


@pytest.mark.parametrize(("options", "wanted"), [([], ServerState.DEAD), ([ROUTED], ServerState.SERVING)])
async def test_a_server_that_says_no_experts_never_serves_a_run_that_replays_them(
    one: FakeEngine, tmp_path: Path, options: list[str], wanted: ServerState
) -> None:
    one.hooks |= {"options": options}
    async with crew_on([one], tmp_path, returns_routes=True) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        await crew.until(lambda: server.state is wanted)
        said = f"was started without {ROUTED}, but algorithm.routing_replay is rollout"
        assert (said in server.reason) is (wanted is ServerState.DEAD)


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        (True, False, "was started without ASYNCRL_BITWISE_AGREEMENT=1, but model.bitwise_agreement asks"),
        (False, True, "was started with ASYNCRL_BITWISE_AGREEMENT=1, but"),
        (True, True, ""),
    ],
)
async def test_a_server_with_other_kernels_than_the_run_never_serves(
    one: FakeEngine, tmp_path: Path, wanted: bool, found: bool, said: str
) -> None:
    one.hooks["bitwise"] = found
    async with crew_on([one], tmp_path, is_bitwise=wanted) as crew:
        await crew.announce(0)
        (server,) = crew.fleet.members.servers.values()
        state = ServerState.DEAD if said else ServerState.SERVING
        await crew.until(lambda: server.state is state)
        assert said in server.reason


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({}, "has no asyncrl plugin: the hook sglang.srt.entrypoints.http_server._setup_and_run_http_server"),
        (
            {
                "sglang": "0.5.23",
                "process": "1",
                "num_ranks": 1,
                "options": [],
                "hooks": {"a.b": True, "c.d": False},
            },
            "runs SGLang 0.5.23, to which 1 hook(s) of asyncrl did not apply: c.d.",
        ),
        (
            {"sglang": "0.6.0", "process": "1", "num_ranks": 1, "options": [], "hooks": {"a.b": True}},
            "runs SGLang 0.6.0; asyncrl's hooks, such as a.b, are written for SGLang 0.5.23.",
        ),
        (
            {
                "sglang": "0.5.23",
                "process": "1",
                "num_ranks": 1,
                "hooks": {"a.b": True},
                "options": ["--model-path", "--speculative-algorithm"],
            },
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
