"""A verdict from your own HTTP server. Failures of the server or the network are a FAULT, never a score.

Sends POST {"response": ..., "reference": ..., "task": {...}}; expects 200 with {"outcome": "correct" |
"wrong" | "no_answer", and optionally "score", "extracted", "detail", "shaping", "turn_rewards", "spans",
"scores"}.
{"outcome": "fault"} is taken at its word. It waits rather than computes: `verify_async` runs in the caller's
event loop and takes no worker."""

import asyncio
import json
import reprlib
from typing import Annotated, Any

from verifiers import strict_json
from verifiers.golds import json_gold
from verifiers.plugins import Bounds
from verifiers.servers import Poster, answered
from verifiers.storable import storable
from verifiers.task import Task
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict, as_number

_KEYS = ("outcome", "score", "extracted", "detail", "shaping", "turn_rewards", "spans", "scores")
_MAX_AT_ONCE = 64
"""Requests to the server at one time; others wait, outside of their time limit."""


class RemoteVerifier:
    def __init__(
        self,
        *,
        url: str,
        timeout_seconds: Annotated[float, Bounds(0.01, 3600)] = 10.0,
        attempts: Annotated[int, Bounds(1, 20)] = 3,
        backoff_seconds: Annotated[float, Bounds(0, 60)] = 0.5,
        token: str = "",
        sends_task: bool = True,
    ) -> None:
        self._server = Poster(
            url,
            timeout_seconds=timeout_seconds,
            attempts=attempts,
            backoff_seconds=backoff_seconds,
            max_at_once=_MAX_AT_ONCE,
        )
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.takes_task = sends_task

    @property
    def pool_timeout_seconds(self) -> float:
        """For a `weighted` verifier, whose parts run in a worker."""
        return self._server.longest_seconds

    def parse_reference(self, raw: object) -> object:
        return json_gold(raw)

    def verify(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict; blocks. Not inside an event loop: use verify_async."""
        body = self._body(response, reference, task)
        return asyncio.run(answered(self._server.ask(body, self._headers, read_verdict)))

    async def verify_async(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict, awaited."""
        body = self._body(response, reference, task)
        return await answered(self._server.ask_in_turn(body, self._headers, read_verdict))

    def _body(self, response: str, reference: object, task: Task | None) -> bytes:
        sent = {"response": response, "reference": reference}
        if self.takes_task:
            sent["task"] = (task or Task()).as_json()
        # A lone surrogate is no UTF-8: escaped, it still is JSON.
        return json.dumps(sent).encode("ascii")


def read_verdict(body: bytes) -> Verdict:
    """The verdict that a reply gives. Raises ValueError for every other reply, whatever it holds."""
    reply = strict_json.loads(body.decode("utf-8"))
    if not isinstance(reply, dict):
        raise ValueError(f"the reply is {_shown(reply)}, expected an object")
    for key in reply:
        if key not in _KEYS:
            raise ValueError(f"the reply has the unknown key {_shown(key)}, expected {', '.join(_KEYS)}")
    if reply.get("outcome") not in list(Outcome):
        raise ValueError(f"outcome is {_shown(reply.get('outcome'))}, expected {', '.join(Outcome)}")
    outcome = Outcome(reply["outcome"])
    score, shaping = reply.get("score"), reply.get("shaping")
    if score is None:
        score = float(outcome is Outcome.CORRECT)
    number = as_number(score, "score", 0.0, 1.0)
    return Verdict(
        outcome,
        None if outcome is Outcome.FAULT else number,
        extracted=_text(reply, "extracted", 4000),
        detail=_text(reply, "detail", 1000) or "",
        shaping=0.0 if shaping is None else as_number(shaping, "shaping", -MAX_SHAPING, MAX_SHAPING),
        turn_rewards=reply.get("turn_rewards"),
        spans=[] if reply.get("spans") is None else reply["spans"],
        scores={} if reply.get("scores") is None else reply["scores"],
    )


def _text(reply: dict[str, Any], key: str, limit: int) -> str | None:
    text = reply.get(key)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{key} is {_shown(text)}, expected text")
    return None if text is None else storable(text[:limit])


def _shown(value: object) -> str:
    # Of a reply nested a thousand times deep, a full text could exceed Python's stack.
    return reprlib.repr(value)
