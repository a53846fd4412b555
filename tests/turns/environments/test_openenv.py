"""The adapter of OpenEnv servers, in episodes' own processes against a server that speaks the protocol."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.openenv_server import OpenEnvServer, openenv_server

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.environment import End, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault
from asyncrl.turns.pool import EpisodePool
from asyncrl.turns.registry import load_environment


@pytest.fixture
async def pool() -> AsyncIterator[EpisodePool]:
    async with EpisodePool(timeout_seconds=60.0) as pool:
        yield pool


def named(server: OpenEnvServer, **options: Any) -> EnvironmentSpec:
    return EnvironmentSpec("openenv", {"url": server.url, "observation_field": "prompt"} | options)


def said(reply: object) -> str:
    assert isinstance(reply, Observation)
    return str(reply.messages[0]["content"])  # type: ignore[index,call-overload]


async def test_a_session_is_reset_stepped_and_closed(pool: EpisodePool, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    options = {"reset_columns": ["seed"], "reset": {"level": 2}, "action": {"kind": "guess"}}
    async with openenv_server() as server:
        episode = await pool.open(named(server, token_file=str(tmp_path / "token"), **options))
        assert episode.recoveries.environment is Recovery.NEITHER
        assert await episode.start({"seed": 9}) == [{"role": "user", "content": "Guess."}]
        reply = await episode.step("4\ud800\x00")
        assert said(reply) == "not 4\ufffd\ufffd" and reply.reward == 0.0  # type: ignore[union-attr]
        end = await episode.step("9")
        assert isinstance(end, End) and end.score == 1.0
        await episode.close()
        while server.num_sessions:
            await asyncio.sleep(0.01)
        assert server.messages[0] == {"type": "reset", "data": {"level": 2, "seed": 9}}
        assert server.messages[2] == {"type": "step", "data": {"kind": "guess", "message": "9"}}
        assert server.messages[-1] == {"type": "close"}
        assert server.headers[0]["Authorization"] == "Bearer abc"


async def test_rewards_may_be_summed_and_scaled(pool: EpisodePool) -> None:
    async with openenv_server() as server:
        episode = await pool.open(named(server, score="sum", full_reward=2.0, opening="prompt"))
        assert await episode.start({}) is None
        end = await episode.step("5")
        assert isinstance(end, End) and end.score == 0.5
        await episode.close()


async def test_a_whole_observation_is_read_as_json(pool: EpisodePool) -> None:
    async with openenv_server() as server:
        episode = await pool.open(EnvironmentSpec("openenv", {"url": server.url}))
        assert await episode.start({}) == [{"role": "user", "content": '{"prompt": "Guess."}'}]
        await episode.close()


async def test_a_server_without_room_is_waited_for(pool: EpisodePool) -> None:
    async with openenv_server(max_sessions=1) as server:
        first, second = await pool.open(named(server)), await pool.open(named(server))
        await first.start({})
        waiting = asyncio.create_task(second.start({}))
        await server.refused.wait()
        await first.close()
        assert await waiting == [{"role": "user", "content": "Guess."}]
        await second.close()


async def test_a_server_that_never_has_room_is_a_fault(pool: EpisodePool) -> None:
    async with openenv_server(max_sessions=0) as server:
        episode = await pool.open(named(server, wait_seconds=0.5))
        with pytest.raises(EnvironmentFault, match="has no room: Server at capacity.*waited for 0.5 s"):
            await episode.start({})
        await episode.close()
        assert server.num_refused > 1


async def test_a_server_that_is_not_there_is_a_fault(pool: EpisodePool) -> None:
    options = {"url": "http://127.0.0.1:9", "wait_seconds": 0.2}
    episode = await pool.open(EnvironmentSpec("openenv", options))
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        await episode.start({})
    await episode.close()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hang up", "has closed the connection"),
        ("nonsense", "expected an observation"),
        ("break", "answered SESSION_ERROR: no session"),
    ],
)
async def test_a_server_that_fails_is_a_fault(pool: EpisodePool, text: str, sentence: str) -> None:
    async with openenv_server() as server:
        episode = await pool.open(named(server))
        await episode.start({})
        with pytest.raises(EnvironmentFault, match=sentence):
            await episode.step(text)
        await episode.close()


async def test_an_error_that_the_action_caused_is_read_by_the_model(pool: EpisodePool) -> None:
    async with openenv_server() as server:
        episode = await pool.open(named(server))
        await episode.start({})
        assert said(await episode.step("invalid")) == "Error: not a number"
        assert (
            said(await episode.step("too long")) == "Error: Invalid message; message: it is string_too_long"
        )
        assert said(await episode.step("7")) == "not 7"
        await episode.close()


async def test_an_action_with_other_fields_than_the_servers_is_a_fault(pool: EpisodePool) -> None:
    async with openenv_server() as server:
        episode = await pool.open(named(server))
        await episode.start({})
        with pytest.raises(EnvironmentFault, match="options action_field and action of openenv"):
            await episode.step("other fields")
        await episode.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs the option 'url', expected a string"),
        ({"url": "localhost:8000"}, "'url' of environment 'openenv' is 'localhost:8000', expected http"),
        ({"url": "http://a", "scores": "sum"}, "no option 'scores'. Did you mean 'score'"),
        ({"url": "http://a", "score": "mean"}, "is 'mean', expected one of last, sum"),
        ({"url": "http://a", "reset": "now"}, "is 'now', expected an object or null"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_environment("openenv", options)
