"""A hand-written rollout server: speaks SGLang's HTTP as far as we use it, without a model.

Every token is 10 + (weight version % 50), the last one the stop token, so a token itself says which version
made it; with a `script` it writes that instead, from where a prompt's prefix of it ends to a stop token.
Tests steer it: `hold` stops generation, `break_streams` cuts the next streams off, `corrupt` loads wrong
weights. While it sleeps it refuses weights, and a wake-up when it does not.
"""

import asyncio
import base64
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from aiohttp import web

from asyncrl.errors import AsyncrlError
from asyncrl.model.column_bytes import FIRST_ROW
from asyncrl.model.weights import read_header, weight_files
from asyncrl.serving.delta import HostCopy
from asyncrl.serving.sglang.hooks import HOOKS_PATH, SGLANG_VERSION
from asyncrl.serving.sglang.weights import PREPARE
from asyncrl.system.files import overall_digest
from asyncrl.wire.fetch import fetch_folder

STOP = 1


class FakeEngine:
    """Start with `async with`; `url` is known then."""

    def __init__(self, *, num_tokens: int = 5, chunk_tokens: int = 2, confirms_chunks: bool = True) -> None:
        self.num_tokens = num_tokens
        self.chunk_tokens = chunk_tokens
        self.confirms_chunks = confirms_chunks
        self.version = "default"
        self.script: list[int] | None = None
        """Every response, however often it is resumed; longer than what is asked for."""
        self.answers: Callable[[list[int]], list[int]] | None = None
        """Given the tokens of a request, those that follow, up to a stop token; in place of a script."""
        self.cache_tokens = 10**6
        self.running_requests = 1000
        """What it says that it takes at once."""
        """What it says of them."""
        self.num_prompt_tokens = 3
        """Of each task, so that a prefix says how much of the script it holds."""
        self.digests: dict[str, str] = {}
        self.may_generate = asyncio.Event()
        self.may_generate.set()
        self.sends_kept_sets = True
        self.sends_routes = True
        """Whether requests that ask for the kept sets of their tokens get them: each token, and 100 more."""
        self.break_streams = 0
        self.ends_in_aborts = False
        """Whether an abort reaches each request with its last token, as SGLang then says."""
        self.is_ready = True
        self._is_paused = False
        self._is_scheduling = asyncio.Event()
        self._is_scheduling.set()
        self.is_asleep = False
        self.refused_sleeps = 0
        """How many of the next calls to release its memory it refuses."""
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self.is_corrupt = False
        self.holds_base = True
        """Whether its weights were the run's base model before it loaded any."""
        self.loaded: list[str] = []
        """Names of the folders that it loaded."""
        self.listed = 0
        """How often it was asked for the digest of each tensor."""
        self.copy = HostCopy(
            Path(tempfile.mkdtemp(prefix="asyncrl-fake-")), fetch=functools.partial(fetch_folder, token="")
        )
        """As the plugin's, with an empty token."""
        self.checksum_reply: Any = None
        """What it says instead of the digests it holds."""
        self.hooks: dict[str, Any] = {
            "sglang": SGLANG_VERSION,
            "process": "1",
            "num_ranks": 1,
            "options": ["--model-path"],
            "hooks": {"a.hook": True},
        }
        """What it says of asyncrl's plugin."""
        self._is_damaged = False
        """Whether the folder that was loaded last holds a file of that name."""
        self.bodies: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.aborted: set[str] = set()
        self.num_running = 0
        """Requests to generate that are not answered to their end."""
        self.num_asked = 0
        """Answers of its scheduler."""
        self.num_running_at_updates: list[int] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeEngine":
        # A prefix of many tokens is a long request; the real server sets no limit.
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/model_info", self._info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get(HOOKS_PATH, self._hooks)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/pause_generation", "/continue_generation"):
            app.router.add_post(path, self._flow)
        app.router.add_post("/flush_cache", self._flow)
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            app.router.add_post(path, self._sleep_or_wake)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_post("/weights_checker", self._check)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.recover()
        self._may_answer.set()
        assert self._runner is not None
        await self._runner.cleanup()
        shutil.rmtree(self.copy.folder, ignore_errors=True)

    def hold(self) -> None:
        self.may_generate.clear()

    def release(self) -> None:
        self.may_generate.set()

    def hang(self) -> None:
        """Its scheduler is stuck until `recover`: nothing is generated, and what asks it gets no answer."""
        self._is_scheduling.clear()
        self.hold()

    def recover(self) -> None:
        self._is_scheduling.set()
        self.release()

    def hold_answers(self) -> None:
        """Nobody is told whether it is ready until `answer_again`."""
        self._may_answer.clear()

    def answer_again(self) -> None:
        self._may_answer.set()

    async def _ready(self, request: web.Request) -> web.Response:
        await self._may_answer.wait()
        return web.Response(status=200 if self.is_ready and not self._is_paused else 503)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _server_info(self, request: web.Request) -> web.Response:
        await self._may_answer.wait()
        await self._is_scheduling.wait()
        if not self.is_ready:
            return web.Response(status=503)
        self.num_asked += 1
        state: dict[str, Any] = {"effective_max_running_requests_per_dp": self.running_requests}
        return web.json_response({"max_total_num_tokens": self.cache_tokens, "internal_states": [state]})

    async def _hooks(self, request: web.Request) -> web.Response:
        return web.json_response(self.hooks, status=200 if self.hooks else 404)

    async def _flow(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if request.path in ("/pause_generation", "/continue_generation"):
            self._is_paused = request.path == "/pause_generation"
        if request.path == "/pause_generation" and (await request.json())["mode"] == "abort":
            self.aborted.update(rid for body in self.bodies for rid in body["rid"])
        return web.json_response({"status": "ok"})

    async def _sleep_or_wake(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        is_sleep = "release" in request.path
        if self.is_asleep is is_sleep:
            return web.Response(status=500)
        if is_sleep and self.refused_sleeps:
            self.refused_sleeps -= 1
            return web.Response(status=500, text="it is not idle")
        self.is_asleep = is_sleep
        return web.json_response(None)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.add((await request.json())["rid"])
        self.release()
        return web.Response()

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(request.path)
        if self.is_asleep:
            return web.json_response({"success": False, "message": "it sleeps"}, status=400)
        folder = Path(body["model_path"])
        if body["load_format"] == PREPARE:
            try:
                await asyncio.to_thread(self.copy.prepare, body["model_path"])
            except (AsyncrlError, OSError) as error:
                return web.json_response({"success": False, "message": repr(error)}, status=400)
            return web.json_response({"success": True, "message": ""})
        if (there := self.copy.take(body["model_path"])) is not None:
            return self._load_copy(there, folder.name, body["weight_version"])
        whole = folder.with_name(folder.name.removesuffix(".changed"))
        digests = json.loads((whole / "publication.json").read_text())["digests"]
        self.loaded.append(folder.name)
        if folder != whole and not self.holds_base:
            given = {name for file in folder.glob("*.safetensors") for name in tensor_names(file)}
            digests = {name: value if name in given else "e" * 16 for name, value in digests.items()}
        self.digests = digests
        self._is_damaged = Path(body["model_path"], "damaged").exists()
        self.version = body["weight_version"]
        self.num_running_at_updates.append(self.num_running)
        return web.json_response({"success": True, "message": ""})

    def _load_copy(self, folder: Path, name: str, version: str) -> web.Response:
        """Its digests are of the bytes that are there."""
        self.loaded.append(name)
        for file in weight_files(folder):
            for it in read_header(file):
                self.digests[it.name] = xxhash.xxh3_64_hexdigest(file.read_bytes()[it.start : it.end])
        self.version = version
        self.num_running_at_updates.append(self.num_running)
        return web.json_response({"success": True, "message": ""})

    async def _check(self, request: web.Request) -> web.Response:
        if self.checksum_reply is not None:
            return web.json_response(self.checksum_reply)
        is_wrong = self.is_corrupt or self._is_damaged
        digests = {name: "f" * 16 if is_wrong else value for name, value in self.digests.items()}
        self.listed += not (left_out := (await request.json())["skip_tensor_list"])
        ranks = [{"checksums": {} if left_out else digests, "per_gpu_checksum": overall_digest(digests)}]
        return web.json_response({"success": True, "ranks": ranks})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.num_running += 1
        try:
            return await self._stream(request)
        finally:
            self.num_running -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        streams = [
            _Stream(
                rid,
                self.num_tokens if p["max_new_tokens"] >= self.num_tokens else p["max_new_tokens"],
                p,
                script=self.script if self.answers is None else self.answers(prefix),
                num_scripted=len(prefix) - self.num_prompt_tokens if self.answers is None else 0,
            )
            for rid, prefix, p in zip(body["rid"], body["input_ids"], body["sampling_params"], strict=True)
        ]
        for stream, is_asked in zip(streams, body.get("return_sampling_mask", ()), strict=False):
            stream.has_kept_sets = is_asked and self.sends_kept_sets
        if body.get("return_routed_experts") and self.sends_routes:
            for stream, prefix, params in zip(
                streams, body["input_ids"], body["sampling_params"], strict=True
            ):
                stream.tokens, stream.num_routed = list(prefix), params["custom_params"][FIRST_ROW]
        while any(not stream.is_done for stream in streams):
            await self.may_generate.wait()
            if self.break_streams:
                self.break_streams -= 1
                assert request.transport is not None
                request.transport.abort()
                return response
            for stream in [s for s in streams if not s.is_done]:
                event = stream.next(self)
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        return response


class _Stream:
    """One request: its tokens so far and the spans of versions that made them."""

    def __init__(
        self,
        rid: str,
        num_tokens: int,
        params: dict[str, Any],
        *,
        script: list[int] | None,
        num_scripted: int,
    ) -> None:
        self.script = script
        self.rid = rid
        self.num_tokens = num_tokens
        self.stops = set(params["stop_token_ids"])
        self.stop = params["stop_token_ids"][0] if num_tokens < params["max_new_tokens"] else None
        self.spans: list[dict[str, Any]] = []
        self.num_sent = 0
        self.num_scripted = num_scripted
        """Tokens of the script that its prefix holds."""
        self.has_kept_sets = False
        self.tokens: list[int] = []
        """Those of its prefix and its own, where routes are asked for."""
        self.num_routed = 0
        self.is_done = False

    def next(self, engine: FakeEngine) -> dict[str, Any]:
        is_aborted = self.rid in engine.aborted
        last = self.num_sent if is_aborted else min(self.num_sent + engine.chunk_tokens, self.num_tokens)
        tokens = self._sampled(engine, last)
        self.is_done = is_aborted or last == self.num_tokens
        has_stopped = self.script is not None and self.stops & set(tokens)
        if has_stopped:
            tokens = tokens[: 1 + next(i for i, token in enumerate(tokens) if token in self.stops)]
            last, self.is_done = self.num_sent + len(tokens), True
        elif self.is_done and tokens and self.stop is not None:
            tokens[-1] = self.stop
        if tokens:
            if self.spans and self.spans[-1]["version"] == engine.version:
                self.spans[-1]["end"] = last
            else:
                self.spans.append({"version": engine.version, "start": self.num_sent, "end": last})
        self.num_sent = last
        end = "length" if self.stop is None and not has_stopped else "stop"
        kind = "abort" if is_aborted or engine.ends_in_aborts else end
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": {"type": kind} if self.is_done else None,
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        }
        if self.has_kept_sets:
            meta["output_token_sampling_mask"] = [[token + 100, token] for token in tokens]
            meta["output_token_sampling_logprobs"] = [-0.25] * len(tokens)
        if self.tokens:
            self.tokens += tokens
            rows = [route(self.tokens, i) for i in range(self.num_routed, len(self.tokens) - 1)]
            meta["routed_experts"] = base64.b64encode(b"".join(rows)).decode() if rows else None
            self.num_routed += len(rows)
        if self.is_done or engine.confirms_chunks:
            meta["weight_versions"] = self.spans
        return {"output_ids": tokens, "meta_info": meta}

    def _sampled(self, engine: FakeEngine, last: int) -> list[int]:
        if self.script is None:
            return [10 + int(engine.version) % 50] * (last - self.num_sent)
        return self.script[self.num_scripted + self.num_sent : self.num_scripted + last]


ROW_BYTES = 2


def route(tokens: list[int], place: int) -> bytes:
    """The experts that a position takes: its token and its number."""
    return bytes([tokens[place] % 256, place % 256])


def tensor_names(file: Path) -> set[str]:
    """Those of a safetensors file, by its header."""
    data = file.read_bytes()
    return set(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])) - {"__metadata__"}
