"""A rollout server as SGLang behaves: pauses, version spans, prefix aborts, a salted prefix cache, faults.

Not a model: a token is a number that the ledger can be asked about. What a client left behind (an
unfinished update, a pause) stays, as it does on a real server.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import aiohttp
from simulation.channel import Channel
from simulation.deltas import damage, name_in
from simulation.world import FIRST_TOKEN, STOP_TOKENS, Made, World, chain

from asyncrl.serving.delta import DeltaRefused, HostCopy
from asyncrl.serving.publication import DELTA
from asyncrl.serving.sglang import hooks
from asyncrl.serving.sglang.weights import PREPARE
from asyncrl.system.files import overall_digest

Reply = tuple[int, Any]


@dataclass(eq=False)
class Request:
    rid: str
    prompt: list[int]
    max_new_tokens: int
    salt: str
    channel: Channel
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    cached_weights: set[str] = field(default_factory=set)
    """Of the keys and values of prompt and tokens so far."""
    num_sent: int = 0
    is_aborted: bool = False
    is_prefilled: bool = False

    def trajectory(self) -> str:
        """run-group-sample-serial -> group-sample; evaluations keep their whole id."""
        parts = self.rid.split("-")
        return "-".join(parts[1:3]) if parts[1] != "eval" else self.rid


class SimulatedServer:
    """`restart` and `die` belong to whoever owns the process, the rest is reached over the session."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url
        self.is_up = False
        self.is_hung = False
        self.faults: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order of their start: the order of a set is that of addresses."""
        self._replies: dict[asyncio.Future[Reply], None] = {}
        self._reset()

    def _reset(self) -> None:
        self.version = "default"
        self.weights = "default"
        self.is_paused = False
        self.is_asleep = False
        """Weights and cache have no memory."""
        self.is_updating = False
        self.is_stalled = False
        """The scheduler is stuck; the front end answers on."""
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.cache: dict[tuple[str, int], set[str]] = {}
        self._channels: dict[Channel, None] = {}
        self._copy = self._new_copy()
        self._is_copy_damaged = False
        self._earlier = self._prepared = ""
        """Places that were prepared before the last, and last."""
        self._update_lock = asyncio.Lock()

    # The process

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self._spawn(self._decode())
        self._notify()

    def die(self) -> None:
        """Every connection breaks; what was loaded or running is gone."""
        self.world.note(f"{self.url} dies")
        self.is_up = self.is_hung = False
        for task in self._tasks:
            task.cancel()
        self._tasks = {}
        for channel in self._channels:
            channel.put(aiohttp.ServerDisconnectedError())
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(aiohttp.ServerDisconnectedError())
                reply.exception()
        self._replies = {}
        self._reset()

    async def restart(self) -> None:
        self.die()
        await asyncio.sleep(0.5 + self.world.delay(1.0))
        self.start()

    def hang(self, seconds: float) -> None:
        self.is_hung = True
        asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self.is_hung = False
        self._notify()

    def break_stream(self) -> None:
        if self._channels:
            channel = self.world.rng.choice(list(self._channels))
            channel.put(aiohttp.ClientPayloadError("the connection was reset"))
            self.hang_up(channel)

    # What clients reach

    async def call(self, path: str, body: Any) -> Reply:
        """The reply, unless the process dies first; the work continues when the caller leaves."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[reply] = None
        self._spawn(self._answer(path, body, reply))
        try:
            return await reply
        finally:
            self._replies.pop(reply, None)

    def generate(self, body: dict[str, Any]) -> Channel:
        channel = Channel()
        self._channels[channel] = None
        requests = [
            Request(rid, list(ids), params["max_new_tokens"], salt, channel)
            for rid, ids, params, salt in zip(
                body["rid"], body["input_ids"], body["sampling_params"], body["cache_salt"], strict=True
            )
        ]
        for request in requests:
            if request.max_new_tokens <= 0:
                self.world.violate(f"{request.rid} asks for {request.max_new_tokens} tokens")
            if request.prompt[-1] in STOP_TOKENS:
                self.world.violate(f"{request.rid} asks for more after a turn's end")
        self.waiting.extend(requests)
        self._notify()
        return channel

    def hang_up(self, channel: Channel) -> None:
        """The client left: its requests end without a word."""
        self._channels.pop(channel, None)
        self.running = [r for r in self.running if r.channel is not channel]
        self.waiting = [r for r in self.waiting if r.channel is not channel]

    async def _answer(self, path: str, body: Any, reply: "asyncio.Future[Reply]") -> None:
        await self._wait(lambda: not self.is_hung)
        answer = await self._act(path, body)
        await asyncio.sleep(self.world.delay(0.005))
        await self._wait(lambda: not self.is_hung)
        if not reply.done():
            if path not in ("/ready", "/model_info", hooks.HOOKS_PATH) and self._uses_up("lose_reply"):
                reply.set_exception(aiohttp.ServerDisconnectedError())
            else:
                reply.set_result(answer)

    async def _act(self, path: str, body: Any) -> Reply:
        match path.partition("?")[0]:
            case "/ready":
                return 503 if self.is_paused else 200, ""
            case "/model_info":
                return 200, {"weight_version": self.version}
            case "/server_info":
                await self._wait(lambda: not (self.is_stalled or self.is_updating))
                state = {"effective_max_running_requests_per_dp": 10**6}
                return 200, {"max_total_num_tokens": 10**9, "internal_states": [state]}
            case hooks.HOOKS_PATH:
                return 200, {
                    "sglang": hooks.SGLANG_VERSION,
                    "process": "1",
                    "num_ranks": 1,
                    "options": [],
                    "hooks": {},
                }
            case "/pause_generation":
                await self._pause(body["mode"])
                return 200, {"status": "ok"}
            case "/continue_generation":
                self.is_paused = False
                self._notify()
                return 200, {"status": "ok"}
            case "/flush_cache":
                if any(request.is_prefilled for request in self.running):
                    return 400, "Flush cache failed."
                self.cache = {}
                return 200, "Cache flushed."
            case "/abort_request":
                for request in (*self.running, *self.waiting):
                    # The scheduler matches by prefix.
                    request.is_aborted |= request.rid.startswith(body["rid"])
                self._notify()
                return 200, ""
            case "/update_weights_from_disk":
                return await self._update(body)
            case "/release_memory_occupation":
                # What waits does so in the front end.
                if self.running or not self.is_paused:
                    self.world.violate(f"{self.url} is told to sleep while it is busy")
                self.is_asleep, self.weights, self.cache = True, "undefined", {}
                return 200, None
            case "/resume_memory_occupation":
                if not self.is_asleep:
                    # SGLang's scheduler dies of it.
                    self.die()
                    await asyncio.sleep(0)
                if self.world.is_trainer_computing:
                    self.world.violate(f"{self.url} wakes up while the trainer computes")
                self.is_asleep = False
                return 200, None
            case "/weights_checker":
                digests = {"w": self.weights}
                return 200, {
                    "success": True,
                    "ranks": [{"checksums": digests, "per_gpu_checksum": overall_digest(digests)}],
                }
        raise AssertionError(path)

    async def _pause(self, mode: str) -> None:
        self.is_paused = True
        if mode == "abort":
            for request in (*self.running, *self.waiting):
                request.is_aborted = True
                self._send(request, "abort")
            await asyncio.sleep(self.world.delay(0.2))
        elif mode == "retract":
            for request in self.running:
                # Back to the waiting queue, tokens kept; a prefill computes all keys and values again.
                request.is_prefilled = False
                request.cached_weights = set()

    def _new_copy(self) -> HostCopy:
        """That of a fresh process, which fetches from nowhere."""
        folder = self.world.folder / f"copy-{self.url.rpartition('/')[2]}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return HostCopy(folder, fetch=mock.Mock(side_effect=AssertionError))

    async def _prepare(self, place: str) -> Reply:
        async with self._update_lock:
            await asyncio.sleep(self.world.delay(0.05))
            if self._uses_up("damage_copy") and (there := self._copy.current):
                damage(there)
                self._is_copy_damaged = True
            if self._uses_up("refuse_prepare"):
                return 400, "OSError: no space left on device"
            late = [self._earlier] if self._earlier and self._uses_up("late_prepare") else []
            twice = [place] if self._uses_up("double_prepare") else []
            reply = 400, "nothing was prepared"
            for each in (*late, *twice, place):
                reply = self._prepare_now(each)
            return reply

    def _prepare_now(self, place: str) -> Reply:
        is_delta = place.endswith(DELTA)
        if not is_delta:
            self._is_copy_damaged = False
        try:
            self._copy.prepare(place)
        except (DeltaRefused, OSError) as error:
            held = self._copy.current
            if held is not None and name_in(held) is None and not self._is_copy_damaged:
                self.world.violate(f"{self.url} changed a copy that it should have refused to change")
            return 400, f"{type(error).__name__}: {error}"
        held = self._copy.current
        if is_delta and place != self._prepared and held is not None and name_in(held) is None:
            self.world.violate(f"{self.url} prepared bytes that are no version's")
        if place != self._prepared:
            self._earlier, self._prepared = self._prepared, place
        return 200, {"success": True}

    async def _update(self, body: dict[str, Any]) -> Reply:
        if body["load_format"] == PREPARE:
            return await self._prepare(body["model_path"])
        async with self._update_lock:
            if not self.is_paused:
                await self._wait(lambda: not self.running)
            if self.is_asleep:
                self.world.violate(f"{self.url} loads weights while it sleeps")
            self.is_updating = True
            try:
                await asyncio.sleep(self.world.delay(0.05))
                weights = self.world.weights_at.get(body["model_path"])
                if (there := self._copy.take(body["model_path"])) is not None:
                    weights = name_in(there) or "garbage"
                if weights is None or self._uses_up("refuse_update"):
                    return 400, {"success": False, "message": "cannot be read"}
                self.weights = f"{weights}!" if self._uses_up("corrupt_update") else weights
                self.version = body["weight_version"]
                self.world.note(f"{self.url} loads {self.weights}")
                return 200, {"success": True}
            finally:
                self.is_updating = False
                self._notify()

    # The scheduler

    async def _decode(self) -> None:
        while True:
            await self._wait(
                lambda: (
                    not (self.is_paused or self.is_updating or self.is_hung or self.is_stalled)
                    and (self.running or self.waiting)
                )
            )
            self.running.extend(self.waiting)
            self.waiting = []
            for request in self.world.rng.sample(self.running, len(self.running)):
                self._advance(request)
            await asyncio.sleep(self.world.delay(self.world.plan.token_seconds))

    def _advance(self, request: Request) -> None:
        if not request.is_prefilled:
            self._prefill(request)
        kind = None
        if request.is_aborted:
            kind = "abort"
        else:
            for _ in range(self.world.rng.randint(1, 3)):
                kind = self._sample(request)
                if kind is not None:
                    break
        if kind is not None or self.world.rng.random() < 0.7:
            self._send(request, kind)

    def _prefill(self, request: Request) -> None:
        request.is_prefilled = True
        found, before = set[str](), 0
        # As in SGLang, the last token is computed in any case.
        for token in request.prompt[:-1]:
            before = chain((token,), before)
            found = self.cache.get((request.salt, before), found)
        request.cached_weights |= found | {self.weights}
        for length in (2, len(request.prompt)):
            key = (request.salt, chain(request.prompt[:length]))
            # What the cache has already replaces what the request computed.
            request.cached_weights |= self.cache.setdefault(key, set(request.cached_weights))

    def _sample(self, request: Request) -> str | None:
        rng, world = self.world.rng, self.world
        is_stop = rng.random() < 0.15
        token = rng.choice(STOP_TOKENS) if is_stop else rng.randrange(FIRST_TOKEN, 1000)
        # A process that somebody else restarted says "default", and its tokens are refused.
        is_known = world.valid_weights is None or self.weights in (*world.valid_weights, "default")
        # They are delivered and not counted, as is a line that cannot be read.
        world.has_protocol_fault |= self.weights == "default"
        if self.weights.endswith("!"):
            world.violate(f"{self.url} samples from corrupt weights {self.weights}")
        elif not is_known and "-eval-" not in request.rid:
            world.violate(f"{self.url} samples from {self.weights}, which the trainer lost")
        request.cached_weights.add(self.weights)
        made = Made(
            request.trajectory(),
            len(request.prompt) - 2 + len(request.tokens),
            token,
            int(self.version) if self.version.isdecimal() else -1,
            self.weights,
            chain(request.tokens, chain(request.prompt)),
            len(request.cached_weights) > 1,
        )
        request.tokens.append(token)
        request.logprobs.append(world.make(made))
        request.versions.append(self.version)
        if is_stop:
            return "stop"
        return "length" if len(request.tokens) == request.max_new_tokens else None

    def _send(self, request: Request, kind: str | None) -> None:
        first, last = request.num_sent, len(request.tokens)
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": None if kind is None else {"type": kind},
            "output_token_logprobs": [
                [request.logprobs[i], request.tokens[i], None] for i in range(first, last)
            ],
            "completion_tokens": last,
        }
        if kind == "abort" and self.world.rng.random() < 0.3:
            # Between a forward pass and its output: a log-prob is there, its token is not.
            meta["output_token_logprobs"].append([0.0, FIRST_TOKEN, None])
            meta["completion_tokens"] += 1
        if kind is not None or self.world.rng.random() < self.world.plan.confirm_share:
            meta["weight_versions"] = _spans(request.versions)
        event = {"output_ids": request.tokens[first:last], "meta_info": meta}
        request.num_sent = last
        self._deliver(request, b"data: " + json.dumps(event).encode())
        if kind is not None:
            self._keep(request)
            (self.running if request in self.running else self.waiting).remove(request)
            if not any(r.channel is request.channel for r in (*self.running, *self.waiting)):
                request.channel.put(b"data: [DONE]")
                request.channel.put(None)
                self._channels.pop(request.channel, None)

    def _keep(self, request: Request) -> None:
        """The prefix that a conversation continues from; its last token has no keys and values yet."""
        if request.is_prefilled:
            key = (request.salt, chain([*request.prompt, *request.tokens[:-1]]))
            self.cache.setdefault(key, set(request.cached_weights))

    def _deliver(self, request: Request, line: bytes) -> None:
        lines = request.channel.lines
        if self._uses_up("drop_event", is_protocol=True):
            return
        if self._uses_up("garbage_event", is_protocol=True):
            line = line[: len(line) // 2]
        if lines and lines[-1] is not None and self._uses_up("swap_events", is_protocol=True):
            last = lines.pop()
            request.channel.put(line)
            request.channel.put(last)
            return
        request.channel.put(line)
        if self._uses_up("duplicate_event", is_protocol=True):
            request.channel.put(line)

    def _uses_up(self, fault: str, *, is_protocol: bool = False) -> bool:
        if not self.faults.get(fault):
            return False
        self.faults[fault] -= 1
        self.world.has_protocol_fault |= is_protocol
        self.world.note(f"{self.url} {fault}")
        return True

    # Waiting

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await self._changed.wait()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))


def _spans(versions: list[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for position, version in enumerate(versions):
        if spans and spans[-1]["version"] == version:
            spans[-1]["end"] = position + 1
        else:
            spans.append({"version": version, "start": position, "end": position + 1})
    return spans
