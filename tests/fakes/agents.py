"""Agents as coroutines of the test, on an engine whose turns are a function of the text before them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from fakes.chat_codec import HEADER, make_chat_codec
from fakes.engine import FakeEngine
from fakes.fleets import fleet_on
from fakes.records import make_queue, make_task

from asyncrl.journal.kept_answers import KeptReplies
from asyncrl.loops import RunPhase, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Algorithm
from asyncrl.records import SamplingParams, Task, Trajectory
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.agents.endpoint import RETRY_HEADER, AgentEndpoint
from asyncrl.rollout.agents.opponents import make_opponents
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.agents.process import Access, Exit, Given
from asyncrl.rollout.agents.recorder import CallRecorder
from asyncrl.rollout.agents.reply import Replies
from asyncrl.rollout.credits import Shaping
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import Limits, OpenTurns
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.sglang.http import new_session
from asyncrl.turns.calls import call_format
from asyncrl.turns.dialogue import Dialogue

CONTEXT = 4000


class Refused(Exception):
    """An answer other than 200: as OpenAI's clients raise."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.error = body["error"]


class Client:
    """Speaks as OpenAI's Python client does, without its retries."""

    def __init__(self, http: aiohttp.ClientSession, access: Access) -> None:
        self._http = http
        self.access = access

    async def chat(self, messages: list[Any], *, retry: int = 0, **body: Any) -> Any:
        """The body of the answer; for a stream, its events."""
        return await self.ask("POST", "/chat/completions", {"messages": messages, **body}, retry=retry)

    async def say(self, messages: list[Any], **body: Any) -> dict[str, Any]:
        """The message of the first choice."""
        return (await self.chat(messages, **body))["choices"][0]["message"]

    async def ask(
        self, method: str, path: str, body: Any = None, *, retry: int = 0, key: str | None = None
    ) -> Any:
        headers = {"Authorization": f"Bearer {self.access.api_key if key is None else key}"}
        headers[RETRY_HEADER] = str(retry)
        url = self.access.base_url + path
        content = None if body is None else json.dumps({"model": "any", **body}).encode()
        async with self._http.request(method, url, data=content, headers=headers) as response:
            if response.status != 200:
                raise Refused(response.status, await response.json())
            if response.content_type == "text/event-stream":
                return [line async for line in _events(response)]
            return await response.json()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        if line.startswith(b"data: ") and b"[DONE]" not in line:
            yield json.loads(line.removeprefix(b"data: "))


Agent = Callable[[Client], Awaitable[Given | None]]


class CoroutineProgram:
    def __init__(self, work: Awaitable[Given | None], ended: Callable[[], None]) -> None:
        self._exit: Exit | None = None
        self._task = asyncio.ensure_future(self._run(work, ended))

    async def _run(self, work: Awaitable[Given | None], ended: Callable[[], None]) -> None:
        try:
            self._exit = Exit(0, score=await work)
        except Exception as error:
            self._exit = Exit(1, str(error))
        ended()

    def exit(self) -> Exit | None:
        return self._exit

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class CoroutinePrograms:
    def __init__(self, agent: Agent, http: aiohttp.ClientSession) -> None:
        self.agent = agent
        self.num_started = 0
        self.keys: list[str] = []
        self._http = http

    async def start(self, task: Task, access: Access, ended: Callable[[], None]) -> CoroutineProgram:
        self.num_started += 1
        self.keys.append(access.api_key)
        return CoroutineProgram(self.agent(Client(self._http, access)), ended)


@dataclass
class Played:
    """A player with one group, and all around it."""

    player: AgentPlayer
    group: Group
    engine: FakeEngine
    codec: TextCodec
    programs: CoroutinePrograms
    endpoint: AgentEndpoint
    http: aiohttp.ClientSession
    rival: FakeEngine
    """That of the opponent "rival"."""

    @property
    def queue(self) -> ReplayQueue:
        return self.player.queue

    async def play(self) -> list[Trajectory]:
        return [trajectory async for trajectory in self.player.run(self.group)]

    def text(self, line: Trajectory) -> str:
        """The whole conversation of a trajectory or branch."""
        return self.codec.exact_text([*line.prompt_tokens, *line.response_tokens()])


@asynccontextmanager
async def agents_on(
    folder: Path,
    agent: Agent,
    answer: Callable[[str], str],
    *,
    queue: ReplayQueue | None = None,
    samples: int = 1,
    max_new_tokens: int = 500,
    max_calls: int = 50,
    timeout_seconds: float = 60.0,
    max_agents: int = 8,
    context_tokens: int = CONTEXT,
    max_running_requests: int = 8,
    server: str | None = None,
    roles: Sequence[str] = (),
    rival: Callable[[str], str] | None = None,
) -> AsyncIterator[Played]:
    """`answer` gives the turn that follows a text; without an end it runs into the limit. `server`: URL of a
    real one that answers instead, of a model of this codec. With `rival` there is an opponent of this name,
    which gives the turns of another engine; its replies are kept in `folder`."""
    codec = make_chat_codec(folder / "codec")
    async with (
        FakeEngine(num_tokens=10_000) as engine,
        FakeEngine(num_tokens=10_000) as other,
        new_session() as session,
        aiohttp.ClientSession() as http,
    ):
        engine.url = engine.url if server is None else server
        engine.version, engine.answers = "0", lambda prefix: rest_of_turn(codec, prefix, answer)
        queue, waits = queue or make_queue(folder, samples=samples), Waits()
        queue.announce(0)
        fleet = fleet_on(engine, session, waits, max_running_requests=max_running_requests)
        state = RunPhase(waits)
        sampling = SamplingParams(1.0, max_new_tokens, codec.stop_token_ids)
        generator = Generator(
            queue,
            fleet,
            waits,
            Limits(sampling, context_tokens, stop=codec.stop),
            1,
            "run",
            state=state,
            turns=OpenTurns(),
        )
        replies = Replies(codec, lambda tools: call_format("auto", codec, ()))
        dialogue = Dialogue(codec, max_observed_tokens=context_tokens)
        fleets: dict[str, Fleet] = {}
        if rival is not None:
            other.version, other.answers = "0", lambda prefix: rest_of_turn(codec, prefix, rival)
            fleets = {"rival": fleet_on(other, session, waits)}
        kept = KeptReplies(folder / "opponents.sqlite")
        opponents = make_opponents(fleets, generator, waits, state, kept)
        recorder = CallRecorder(queue, generator, replies, dialogue, waits, max_calls, roles, opponents)
        programs = CoroutinePrograms(agent, http)
        async with AgentEndpoint(recorder, model="tiny") as endpoint:
            player = AgentPlayer(
                queue,
                recorder,
                programs,
                Shaping(Algorithm(), generator.limits),
                waits,
                state,
                endpoint.base_url,
                timeout_seconds=timeout_seconds,
                num_fault_retries=1,
                max_agents=max_agents,
            )
            group = next(iter(queue.live.values()), None) or queue.admit(make_task())
            yield Played(player, group, engine, codec, programs, endpoint, http, other)
        kept.close()


def rest_of_turn(codec: TextCodec, prefix: list[int], answer: Callable[[str], str]) -> list[int]:
    """The rest of the turn that `prefix` may have begun."""
    text = codec.exact_text(prefix)
    before, _, begun = text.rpartition(HEADER)
    whole = codec.encode(answer(before + HEADER), add_special_tokens=False)
    return list(whole[len(codec.encode(begun, add_special_tokens=False)) :])


async def outcome_of(
    folder: Path, ask: Callable[[Client], Awaitable[Any]], answer: Callable[[str], str]
) -> tuple[Any, Played]:
    """Reply, or error, that an agent gets for its one call."""
    found: list[Any] = []

    async def agent(client: Client) -> None:
        try:
            found.append(await ask(client))
        except Refused as refused:
            found.append(refused)

    async with agents_on(folder, agent, answer) as run:
        await run.play()
        assert not run.group.scores, run.group.scores
    return found[0], run
