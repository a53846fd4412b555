"""SGLang 0.5.23 over HTTP: every endpoint that asyncrl calls. No other file names one.

Requests and replies of /generate are encoded and decoded in sglang_messages.py. Each call raises ServerError,
which names the endpoint, when the server is gone, silent or refuses.
"""

import asyncio
import base64
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.model.unsampled import UNSAMPLED_VARIABLE, Unsampled
from asyncrl.recipe.server_options import reason_against
from asyncrl.records import PolicyVersion
from asyncrl.serving.capacity import Capacity
from asyncrl.serving.pass_sums import PassSums
from asyncrl.serving.sglang_messages import Chunk, parse_event
from asyncrl.wire.access import Keys, bearer

PAUSE_MODES = {"continue": "in_place", "retract": "retract", "abort": "abort", "drain": "in_place"}
"""rollout.interrupt -> SGLang's word for it. Drained servers have nothing to interrupt."""
UPDATE_SECONDS = 300.0
"""Longest wait for the answer to one request of a weight update."""
CALL_SECONDS = 30.0
"""Longest wait for the answer to a call that loads nothing."""
IDLE_SECONDS = 20.0
"""Longest wait for a scheduler to be idle once all streams have ended."""
PROBE_SECONDS = 5.0
READY_PATH = "/ready"
"""Says whether a server can serve, and makes it compute nothing. Servers of a run tell it to everybody."""
SGLANG_VERSION = "0.5.23"
"""The one that the plugin's hooks are written for."""
HOOKS_PATH = "/asyncrl/hooks"
"""Not SGLang's: asyncrl's plugin answers it, see engine/applied_hooks.py."""
_JSON = {"Content-Type": "application/json"}
_SLEEP = {"tags": ["kv_cache", "weights"]}
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Engine:
    """The process that serves at a URL now."""

    process: str
    """Another one after a restart."""
    num_ranks: int
    """Ranks that hold weights."""


def new_session(keys: Keys | None = None) -> aiohttp.ClientSession:
    """A session without a limit on connections and with small buffers. Owner closes it.

    Each server is shown its own of `keys`.
    """
    return aiohttp.ClientSession(
        middlewares=() if keys is None else (_showing(keys),),
        # SGLang closes connections that were idle for 5 s. Reusing one at that moment would look like a
        # server that died.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0, socket_factory=_probed_socket),
        # Of each stream. What it holds is dealt with in one go: a controller that cannot keep up with its
        # servers is to slow them down, not to leave takes waiting for all that has arrived.
        read_bufsize=2**16,
        timeout=aiohttp.ClientTimeout(total=None),
    )


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """One that breaks within minutes when the machine at its other end is gone, or has forgotten it: a stream
    may be silent for long."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 60),
        (socket.TCP_KEEPINTVL, 20),
        (socket.TCP_KEEPCNT, 6),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _showing(keys: Keys) -> aiohttp.ClientMiddlewareType:
    async def show(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.headers.update(bearer(keys.of(str(request.url))))
        return await handler(request)

    return show


# Generating


async def stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], *, silence_seconds: float | None = None
) -> AsyncIterator[Chunk]:
    """Chunks of a streamed /generate, until every request in it has ended.

    Raises ServerError on a refusal, on a broken connection and after `silence_seconds` without a chunk.
    Without these it waits as long as the connection stands: a request may wait for others on its server.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_seconds)
    try:
        async with session.post(f"{url}/generate", json=body, timeout=timeout) as response:
            if response.status != 200:
                text = await response.text()
                raise ServerError(f"{url}/generate answered {response.status}: {text[:500]}")
            rest = b""
            # All that has arrived at once: a read for each line costs more than what is done with it.
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    event = line[5:].strip()
                    if event == b"[DONE]":
                        return
                    yield parse_event(event)
    except aiohttp.SocketTimeoutError as error:
        raise ServerError(f"{url} streamed nothing for {silence_seconds:.0f} s") from error
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


# Memory


async def sleep(session: aiohttp.ClientSession, url: str) -> None:
    """Aborts what runs, whose streams carry what they have, and gives back the memory of weights and cache.
    The server stays paused."""
    await pause_generation(session, url, interrupt="abort", timeout_seconds=CALL_SECONDS)
    # The scheduler dies of a release while it is not idle, and its last step may end after the last stream.
    wait = f"/flush_cache?timeout={IDLE_SECONDS:g}"
    await post(session, url, wait, None, timeout_seconds=CALL_SECONDS)
    await post(session, url, "/release_memory_occupation", _SLEEP, timeout_seconds=CALL_SECONDS)


async def wake(session: aiohttp.ClientSession, url: str) -> None:
    """Takes the memory back, for a server that sleeps. Its weights are undefined until some are loaded; it
    stays paused."""
    await post(session, url, "/resume_memory_occupation", _SLEEP, timeout_seconds=CALL_SECONDS)


# Health


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the server answers that it can serve; False while it starts, while paused, or when nothing
    listens."""
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
                f"{url} was not ready within {timeout_seconds:.0f} s. Is it an SGLang {SGLANG_VERSION} "
                f"server? Raise serving.start_timeout_seconds if it is only slow."
            )
        if may_be_paused:
            # It may as well still be out of reach.
            with contextlib.suppress(ServerError):
                await continue_generation(session, url, timeout_seconds=PROBE_SECONDS)
        await asyncio.sleep(0.1)


async def is_open(url: str) -> bool:
    """Whether the server answers a request without a key. Raises ServerError when it answers nothing."""
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    try:
        async with aiohttp.request("GET", f"{url}/model_info", timeout=timeout) as response:
            return response.status != 401
    except _FAILURES as error:
        raise ServerError(f"{url}/model_info failed: {type(error).__name__}: {error}") from error


async def weight_version(session: aiohttp.ClientSession, url: str) -> str | None:
    """The label of the weights that the server holds now; None when it does not answer that it can serve.

    While it is paused it is not ready. Its front end alone may outlive its scheduler.
    """
    if not await is_ready(session, url) and not await answers(session, url, timeout_seconds=PROBE_SECONDS):
        return None
    try:
        answer = await _get_json(session, f"{url}/model_info", timeout_seconds=PROBE_SECONDS)
        return str(answer["weight_version"])
    except (ServerError, KeyError, TypeError):
        return None


async def answers(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """Whether the scheduler of the server answers, as it does also while generation is paused."""
    try:
        await _server_info(session, url, timeout_seconds)
    except ServerError:
        return False
    return True


async def capacity(session: aiohttp.ClientSession, url: str) -> Capacity:
    """Asks the server for its capacity."""
    answer = await _server_info(session, url, CALL_SECONDS)
    try:
        running = answer["internal_states"][0]["effective_max_running_requests_per_dp"]
        return Capacity(int(answer["max_total_num_tokens"]), int(running))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ServerError(
            f"{url}/server_info does not say what the server takes at once ({type(error).__name__}: "
            f"{error}). Is it an SGLang {SGLANG_VERSION} server?"
        ) from None


async def passes(session: aiohttp.ClientSession, url: str) -> PassSums:
    """How long all passes of its process took."""
    answer = await _server_info(session, url, PROBE_SECONDS)
    try:
        return PassSums.read(answer["internal_states"])
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{url}/server_info does not say how long passes took ({type(error).__name__}: {error})"
        ) from None


async def _server_info(session: aiohttp.ClientSession, url: str, timeout_seconds: float) -> Mapping[str, Any]:
    """Start arguments of the server and internal states of its scheduler."""
    answer = await _get_json(session, f"{url}/server_info", timeout_seconds=timeout_seconds)
    if not isinstance(answer, dict):
        raise ServerError(f"{url}/server_info answered {answer!r:.200}, expected an object")
    return answer


async def check_hooks(
    session: aiohttp.ClientSession, url: str, *, unsampled: Unsampled | None = None
) -> Engine:
    """Raises ServerError when a hook of asyncrl's plugin does not apply there: versions of tokens and digests
    of weights would be missing or wrong. So it does when the tokens that the server never samples are others
    than `unsampled`: its log-probs would be of another distribution than the trainer's."""
    found = await _get_json(session, f"{url}{HOOKS_PATH}")
    if found is None:
        raise ServerError(
            f"{url} has no asyncrl plugin: the hook sglang.srt.entrypoints.http_server."
            f"_setup_and_run_http_server did not apply, so {HOOKS_PATH} is unknown. Install asyncrl where "
            f"that server runs, and name its entry point in SGLANG_PLUGINS if that is set."
        )
    try:
        version, engine = str(found["sglang"]), Engine(str(found["process"]), int(found["num_ranks"]))
        missing = [target for target, is_applied in found["hooks"].items() if not is_applied]
        options = [str(option) for option in found["options"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ServerError(f"{url}{HOOKS_PATH} answered {found!r:.200}, expected hooks") from None
    if missing:
        raise ServerError(
            f"{url} runs SGLang {version}, to which {len(missing)} hook(s) of asyncrl did not apply: "
            f"{', '.join(missing)}. They are written for SGLang {SGLANG_VERSION}."
        )
    if version != SGLANG_VERSION:
        raise ServerError(
            f"{url} runs SGLang {version}; asyncrl's hooks, such as {next(iter(found['hooks']), 'none')}, "
            f"are written for SGLang {SGLANG_VERSION}."
        )
    for option in options:
        if (why := reason_against(option)) is not None:
            raise ServerError(f"{url} was started with {option}: {why}. Start it without.")
    there = str(found.get("unsampled", ""))
    if unsampled is not None and there != str(unsampled):
        raise ServerError(
            f"{url} never samples the tokens {there or 'none'!r}, the run never samples "
            f"{str(unsampled) or 'none'!r}: its log-probs are not those that are trained. Start it on the "
            f"run's model folder, with the run's version of asyncrl and "
            f'{UNSAMPLED_VARIABLE}="{unsampled}".'
        )
    return engine


async def _get_json(
    session: aiohttp.ClientSession, address: str, *, timeout_seconds: float = CALL_SECONDS
) -> Any:
    """None where there is no such address. Raises ServerError."""
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with session.get(address, timeout=timeout) as response:
            if response.status == 404:
                return None
            answer = await response.text()
            if response.status != 200:
                raise ServerError(f"{address} answered {response.status}: {answer[:300]}")
            return json.loads(answer)
    except _FAILURES as error:
        raise ServerError(f"{address} failed: {type(error).__name__}: {error}") from error


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
    session: aiohttp.ClientSession,
    url: str,
    pickled: bytes,
    version: PolicyVersion | None,
    *,
    num_ranks: int = 1,
) -> None:
    """Weights by value: `pickled` is a list of (name, tensor on the CPU). The last part has the version. Each
    of the server's ranks reads a copy of its own."""
    body = await asyncio.to_thread(_tensor_body, pickled, version, num_ranks)
    await post(session, url, "/update_weights_from_tensor", body)


async def init_weights_update_group(
    session: aiohttp.ClientSession,
    url: str,
    *,
    host: str,
    port: int,
    name: str,
    first_rank: int,
    size: int,
    backend: str,
) -> None:
    """The ranks of the server join a group of `size`, the first of them as `first_rank`; returns once the
    group is formed."""
    body = {
        "master_address": host,
        "master_port": port,
        "rank_offset": first_rank,
        "world_size": size,
        "group_name": name,
        "backend": backend,
    }
    await post(session, url, "/init_weights_update_group", body)


async def destroy_weights_update_group(session: aiohttp.ClientSession, url: str, name: str) -> None:
    await post(
        session, url, "/destroy_weights_update_group", {"group_name": name}, timeout_seconds=CALL_SECONDS
    )


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
    """The server receives one broadcast, the bytes of these tensors in this order. The last part has the
    version."""
    body = {
        "names": names,
        "dtypes": dtypes,
        "shapes": shapes,
        "group_name": group,
        "load_format": "flattened_bucket",
        **_label(version),
    }
    await post(session, url, "/update_weights_from_distributed", body)


async def weight_digests(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float
) -> list[dict[str, str]]:
    """Digests per tensor rank: name of each tensor, as Hugging Face names it -> the digest of the bytes that
    its loader was given in the last update (engine/loaded_weights.py)."""
    check = {"action": "checksum"}
    reply = await post(session, url, "/weights_checker", check, timeout_seconds=timeout_seconds)
    try:
        ranks: list[dict[str, str]] = [rank["checksums"] for rank in json.loads(reply)["ranks"]]
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"{url}/weights_checker answered {reply[:200]!r}, expected ranks of checksums"
        ) from None
    return ranks


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
    """Fields that go with each part of an update. A flush is refused while requests run; prefix caches are
    salted by version instead."""
    return {"flush_cache": False} | ({} if version is None else {"weight_version": str(version)})


def _tensor_body(pickled: bytes, version: PolicyVersion | None, num_ranks: int) -> bytes:
    label, content = json.dumps(_label(version)).encode(), base64.b64encode(pickled)
    # Spliced in: an encoder would look at every character of the weights for one to escape.
    copies = b'", "'.join([content] * num_ranks)
    return b"".join((label[:-1], b', "serialized_named_tensors": ["', copies, b'"]}'))
