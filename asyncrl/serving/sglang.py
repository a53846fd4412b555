"""SGLang 0.5.23 over HTTP: every endpoint that asyncrl calls. No other file names one.

Requests and replies of /generate are encoded and decoded in sglang_messages.py. Each call raises ServerError,
which names the endpoint, when the server is gone, silent or refuses.
"""

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp

from asyncrl.access import Keys, bearer
from asyncrl.errors import ServerError, ServerSilent
from asyncrl.records import PolicyVersion
from asyncrl.serving.sglang_messages import Chunk, parse_event

PAUSE_MODES = {"continue": "in_place", "retract": "retract", "abort": "abort", "drain": "in_place"}
"""rollout.interrupt -> SGLang's word for it. Drained servers have nothing to interrupt."""
UPDATE_SECONDS = 300.0
"""Longest wait for the answer to one request of a weight update."""
CALL_SECONDS = 30.0
"""Longest wait for the answer to a call that loads nothing."""
PROBE_SECONDS = 5.0
READY_PATH = "/ready"
"""Says whether a server can serve, and makes it compute nothing. Servers of a run tell it to everybody."""
_JSON = {"Content-Type": "application/json"}
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


def new_session(keys: Keys | None = None) -> aiohttp.ClientSession:
    """A session without a limit on connections and with room for long event lines. Owner closes it.

    Each server is shown its own of `keys`.
    """
    return aiohttp.ClientSession(
        middlewares=() if keys is None else (_showing(keys),),
        # SGLang closes connections that were idle for 5 s. Reusing one at that moment would look like a
        # server that died.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
        read_bufsize=2**22,
        timeout=aiohttp.ClientTimeout(total=None),
    )


def _showing(keys: Keys) -> aiohttp.ClientMiddlewareType:
    async def show(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.headers.update(bearer(keys.of(str(request.url))))
        return await handler(request)

    return show


# Generating


async def stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], *, silence_seconds: float
) -> AsyncIterator[Chunk]:
    """Chunks of a streamed /generate, until every request in it has ended.

    Raises ServerError on a refusal or a broken connection; ServerSilent after `silence_seconds` without one.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_seconds)
    try:
        async with session.post(f"{url}/generate", json=body, timeout=timeout) as response:
            if response.status != 200:
                text = await response.text()
                raise ServerError(f"{url}/generate answered {response.status}: {text[:500]}")
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield parse_event(data)
    except aiohttp.SocketTimeoutError as error:
        raise ServerSilent(f"{url} streamed nothing for {silence_seconds:.0f} s") from error
    except _FAILURES as error:
        raise ServerError(f"{url} broke off: {type(error).__name__}: {error}") from error
    raise ServerError(f"{url} closed a stream before its end")


async def abort(session: aiohttp.ClientSession, url: str, request_id: str) -> None:
    """Ends one running request early; its stream then carries what it has."""
    await post(session, url, "/abort_request", {"rid": request_id}, timeout_seconds=CALL_SECONDS)


async def pause_generation(
    session: aiohttp.ClientSession, url: str, *, interrupt: str, timeout_seconds: float
) -> None:
    """Holds generation; `interrupt`, a key of PAUSE_MODES, says what happens to running requests."""
    mode = {"mode": PAUSE_MODES[interrupt]}
    await post(session, url, "/pause_generation", mode, timeout_seconds=timeout_seconds)


async def continue_generation(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float = CALL_SECONDS
) -> None:
    """Lifts a pause, also one that a publisher left behind when it died."""
    body = {"torch_empty_cache": False}
    await post(session, url, "/continue_generation", body, timeout_seconds=timeout_seconds)


async def flush_cache(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> None:
    """Forgets all keys and values; a server refuses while requests hold some."""
    await post(session, url, "/flush_cache", None, timeout_seconds=timeout_seconds)


# Health


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the server answers that it can serve; False while it starts or when nobody listens."""
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        async with session.get(f"{url}{READY_PATH}", timeout=timeout) as response:
            return response.status == 200
    except _FAILURES:
        return False


async def wait_until_ready(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float, may_be_paused: bool = False
) -> None:
    """Raises ServerError when the server is not ready within `timeout_seconds`.

    One that `may_be_paused`, by a publish that broke off, is resumed: a paused server is not ready.
    """
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while not await is_ready(session, url):
        if asyncio.get_running_loop().time() > deadline:
            raise ServerError(
                f"{url} was not ready within {timeout_seconds:.0f} s. Is it an SGLang 0.5.23 server? "
                f"Raise serving.start_timeout_seconds if it is only slow."
            )
        if may_be_paused:
            # It may as well still be out of reach.
            with contextlib.suppress(ServerError):
                await continue_generation(session, url, timeout_seconds=PROBE_SECONDS)
        await asyncio.sleep(0.1)


async def is_open(url: str) -> bool:
    """Whether the server answers somebody who shows no key. Raises ServerError when it answers nothing."""
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    try:
        async with aiohttp.request("GET", f"{url}/model_info", timeout=timeout) as response:
            return response.status != 401
    except _FAILURES as error:
        raise ServerError(f"{url}/model_info failed: {type(error).__name__}: {error}") from error


async def weight_version(session: aiohttp.ClientSession, url: str) -> str | None:
    """The label of the weights that the server holds now; None when it does not answer that it can serve."""
    if not await is_ready(session, url):
        return None
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        async with session.get(f"{url}/model_info", timeout=timeout) as response:
            answer = await response.json(content_type=None)
            return str(answer["weight_version"]) if response.status == 200 else None
    except (*_FAILURES, KeyError, TypeError):
        return None


# Weights


async def update_weights_from_disk(
    session: aiohttp.ClientSession, url: str, folder: Path | str, version: PolicyVersion
) -> None:
    """The server reads the safetensors in `folder`, which it must see at the same path. A URL is fetched
    first, by a server that has asyncrl's plugin."""
    body = {"model_path": str(folder), **_label(version)}
    await post(session, url, "/update_weights_from_disk", body)


async def begin_weight_update(session: aiohttp.ClientSession, url: str) -> None:
    """Opens a session for weights sent in parts; one that a dead trainer left open is closed first."""
    try:
        await post(session, url, "/begin_weight_update", {})
    except ServerError:
        await end_weight_update(session, url)
        await post(session, url, "/begin_weight_update", {})


async def end_weight_update(session: aiohttp.ClientSession, url: str) -> None:
    await post(session, url, "/end_weight_update", {})


async def update_weights_from_tensor(
    session: aiohttp.ClientSession, url: str, pickled: bytes, version: PolicyVersion | None
) -> None:
    """Weights by value: `pickled` is a list of (name, tensor on the CPU). The last part has the version."""
    body = await asyncio.to_thread(_tensor_body, pickled, version)
    await post(session, url, "/update_weights_from_tensor", body)


async def init_weights_update_group(
    session: aiohttp.ClientSession, url: str, *, host: str, port: int, name: str, backend: str
) -> None:
    """The server joins the group of two in which the caller is rank 0; returns once the group is formed."""
    body = {
        "master_address": host,
        "master_port": port,
        "rank_offset": 1,
        "world_size": 2,
        "group_name": name,
        "backend": backend,
    }
    await post(session, url, "/init_weights_update_group", body)


async def update_weights_from_distributed(
    session: aiohttp.ClientSession,
    url: str,
    *,
    group: str,
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
    version: PolicyVersion | None,
) -> None:
    """The server receives one broadcast per tensor, in this order. The last part has the version."""
    body = {"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": group, **_label(version)}
    await post(session, url, "/update_weights_from_distributed", body)


async def weight_digests(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float
) -> dict[str, str]:
    """Name of each tensor (fused, as SGLang names it) -> the digest of the bytes that the server holds."""
    check = {"action": "checksum"}
    reply = await post(session, url, "/weights_checker", check, timeout_seconds=timeout_seconds)
    try:
        ranks = [rank["checksums"] for rank in json.loads(reply)["ranks"]]
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"{url}/weights_checker answered {reply[:200]!r}, expected ranks of checksums"
        ) from None
    if len(ranks) != 1:
        raise ServerError(
            f"{url} has {len(ranks)} tensor-parallel ranks; digests are compared for one rank only."
        )
    digests: dict[str, str] = ranks[0]
    return digests


async def post(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    body: Mapping[str, object] | bytes | None,
    *,
    timeout_seconds: float = UPDATE_SECONDS,
) -> str:
    """The answer to `body`, in bytes if it is JSON already. Raises ServerError."""
    if isinstance(body, Mapping):
        body = json.dumps(body).encode()
    # As a file: weights in a request are too large to be handed to the socket at once.
    data, headers = (None, None) if body is None else (io.BytesIO(body), _JSON)
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with session.post(f"{url}{path}", data=data, headers=headers, timeout=timeout) as response:
            status, answer = response.status, await response.text()
    except _FAILURES as error:
        raise ServerError(f"{url}{path} failed: {type(error).__name__}: {error}") from error
    if status != 200:
        raise ServerError(f"{url}{path} answered {status}: {answer[:300]}")
    return answer


def _label(version: PolicyVersion | None) -> dict[str, object]:
    """What goes with each part of an update. A flush is refused while requests run; prefix caches are salted
    by version instead."""
    return {"flush_cache": False} | ({} if version is None else {"weight_version": str(version)})


def _tensor_body(pickled: bytes, version: PolicyVersion | None) -> bytes:
    label, content = json.dumps(_label(version)).encode(), base64.b64encode(pickled)
    # Spliced in: an encoder would look at every character of the weights for one to escape.
    return b"".join((label[:-1], b', "serialized_named_tensors": ["', content, b'"]}'))
