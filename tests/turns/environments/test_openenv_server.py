"""The adapter against OpenEnv itself: the environment that `openenv init` writes, served by its server."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.environment import Observation
from asyncrl.turns.episode import EnvironmentFault
from asyncrl.turns.pool import EpisodePool

# Its packages do not fit ours, so that it lives in an environment of its own.
PYTHON = os.environ.get("OPENENV_PYTHON", sys.executable)
HAS_OPENENV = (
    subprocess.run(
        [PYTHON, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('openenv') is None)"],
        check=False,
    ).returncode
    == 0
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not HAS_OPENENV,
        reason="OpenEnv is not installed: name a Python that has it in OPENENV_PYTHON",
    ),
]


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """The URL of an echo environment, which has room for one session."""
    subprocess.run(
        [PYTHON, "-m", "openenv.cli", "init", "echo", "-o", folder], check=True, capture_output=True
    )
    server = await asyncio.create_subprocess_exec(
        *(PYTHON, "-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", "0"),
        cwd=folder / "echo",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stderr is not None
    said = []
    try:
        async for line in server.stderr:
            said.append(line.decode())
            if "running on " in said[-1]:
                break
        else:
            pytest.fail("".join(said))
        yield said[-1].partition("running on ")[2].split()[0]
    finally:
        server.terminate()
        await server.communicate()


def named(url: str, **options: Any) -> EnvironmentSpec:
    return EnvironmentSpec("openenv", {"url": url, "observation_field": "echoed_message"} | options)


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_a_server_of_openenv_plays_an_episode_and_has_room_for_the_next(tmp_path: Path) -> None:
    async with served(tmp_path) as url, EpisodePool(timeout_seconds=60.0) as pool:
        first, second = await pool.open(named(url)), await pool.open(named(url))
        assert await first.start({}) == said("Echo environment ready!")
        reply = await first.step("hello\ud800")
        assert isinstance(reply, Observation) and reply.messages == said("hello\ufffd")
        assert reply.reward == pytest.approx(0.6)
        waiting = asyncio.create_task(second.start({}))
        await first.close()
        assert await waiting == said("Echo environment ready!")
        third = await pool.open(named(url, wait_seconds=0.5))
        with pytest.raises(EnvironmentFault, match="has no room: Server at capacity.*waited for 0.5 s"):
            await third.start({})
        await second.close()
        await third.close()
        wrong = await pool.open(named(url, action_field="text"))
        await wrong.start({})
        with pytest.raises(EnvironmentFault, match="options action_field and action.*see message, text"):
            await wrong.step("hello")
        await wrong.close()
