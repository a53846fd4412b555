"""Control of a running server: aborts, pauses, its cache and its sleep."""

import aiohttp

from asyncrl.serving.sglang import http
from asyncrl.serving.sglang.http import CALL_SECONDS

PAUSE_MODES = {"continue": "in_place", "retract": "retract", "abort": "abort", "drain": "in_place"}
"""rollout.interrupt -> SGLang's word for it. Drained servers have nothing to interrupt."""
IDLE_SECONDS = 20.0
"""Longest wait for a scheduler to be idle once all streams have ended."""
_SLEEP = {"tags": ["kv_cache", "weights", "cuda_graph"]}
"""CUDA graphs can be released where the server was started for it (engine/environment.py); else they stay."""


async def abort(session: aiohttp.ClientSession, url: str, request_id: str) -> None:
    """Ends one running request early; its stream then carries what it has."""
    await http.post(session, url, "/abort_request", {"rid": request_id}, timeout_seconds=CALL_SECONDS)


async def pause_generation(
    session: aiohttp.ClientSession, url: str, *, interrupt: str, timeout_seconds: float
) -> None:
    """Holds generation; `interrupt`, a key of PAUSE_MODES, says what happens to running requests."""
    mode = {"mode": PAUSE_MODES[interrupt]}
    await http.post(session, url, "/pause_generation", mode, timeout_seconds=timeout_seconds)


async def continue_generation(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float = CALL_SECONDS
) -> None:
    """Lifts a pause, also one that a publisher left behind when it died."""
    body = {"torch_empty_cache": False}
    await http.post(session, url, "/continue_generation", body, timeout_seconds=timeout_seconds)


async def flush_cache(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> None:
    """Forgets all keys and values; a server refuses while requests hold some."""
    await http.post(session, url, "/flush_cache", None, timeout_seconds=timeout_seconds)


async def sleep(session: aiohttp.ClientSession, url: str) -> None:
    """Aborts what runs, whose streams carry what they have, and gives back the memory of weights, cache and
    graphs. The server stays paused."""
    await pause_generation(session, url, interrupt="abort", timeout_seconds=CALL_SECONDS)
    # The scheduler dies of a release while it is not idle, and its last step may end after the last stream.
    wait = f"/flush_cache?timeout={IDLE_SECONDS:g}"
    await http.post(session, url, wait, None, timeout_seconds=CALL_SECONDS)
    await http.post(session, url, "/release_memory_occupation", _SLEEP, timeout_seconds=CALL_SECONDS)


async def wake(session: aiohttp.ClientSession, url: str) -> None:
    """Takes the memory back, for a server that sleeps. Its weights are undefined until some are loaded; it
    stays paused."""
    await http.post(session, url, "/resume_memory_occupation", _SLEEP, timeout_seconds=CALL_SECONDS)
