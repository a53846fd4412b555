"""A verdict from an HTTP server of your own. Every failure of the server or the network is a FAULT, never a
score.

Sends POST {"response": ..., "reference": ...}; expects 200 with {"outcome": "correct" | "wrong" |
"no_answer", and optionally "score", "extracted", "detail", "shaping"}. {"outcome": "fault"} is taken at its
word."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from verifiers.options import read_number, read_string
from verifiers.verdict import Outcome, Verdict, fault

_MAX_REPLY_BYTES = 1_000_000
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}


class RemoteVerifier:
    def __init__(
        self,
        *,
        url: object,
        timeout_seconds: object = 10.0,
        attempts: object = 3,
        backoff_seconds: object = 0.5,
        token: object = "",
    ) -> None:
        self._url = read_string("remote", "url", url)
        scheme = urllib.parse.urlsplit(self._url).scheme
        if scheme not in ("http", "https"):
            raise ValueError(f"Option 'url' of verifier 'remote' is {url!r}, expected http:// or https://.")
        self._timeout = read_number("remote", "timeout_seconds", timeout_seconds, least=0.01, most=3600)
        self._attempts = int(read_number("remote", "attempts", attempts, least=1, most=20))
        self._backoff = read_number("remote", "backoff_seconds", backoff_seconds, least=0, most=60)
        self._token = read_string("remote", "token", token)
        self._wake = threading.Event()

    @property
    def pool_timeout_seconds(self) -> float:
        waits: float = sum(self._backoff * 2**attempt for attempt in range(self._attempts - 1))
        return self._attempts * self._timeout + waits + 5.0

    def parse_reference(self, raw: object) -> object:
        try:
            json.dumps(raw)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The gold is {raw!r}, expected something that JSON can hold: {error}."
            ) from error
        return raw

    def verify(self, response: str, reference: object) -> Verdict:
        # A lone surrogate is no UTF-8: escaped, it still is JSON.
        body = json.dumps({"response": response, "reference": reference}).encode("ascii")
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                self._wake.wait(self._backoff * 2 ** (attempt - 1))
            try:
                return self._ask(body)
            except _Refused as error:
                return fault(f"{self._url} refused the request: {error}")
            except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
                problem = f"{type(error).__name__}: {error}"
        return fault(f"{self._url} gave no verdict in {self._attempts} attempts: {problem}"[:1000])

    def _ask(self, body: bytes) -> Verdict:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        deadline = time.monotonic() + self._timeout
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as reply:
                return _read_verdict(json.loads(_read_all(reply, deadline)))
        except urllib.error.HTTPError as error:
            if error.code in _RETRIED_STATUS:
                raise
            raise _Refused(f"status {error.code}") from error


class _Refused(Exception):
    """A reply that another attempt would not change."""


def _read_all(reply: Any, deadline: float) -> bytes:
    """The body; a server that sends it drop by drop is cut off at the deadline."""
    parts = bytearray()
    while part := reply.read1(65536):
        parts += part
        if len(parts) > _MAX_REPLY_BYTES:
            raise ValueError(f"the reply has more than {_MAX_REPLY_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the reply took too long")
    return bytes(parts)


def _read_verdict(reply: Any) -> Verdict:
    if not isinstance(reply, dict) or reply.get("outcome") not in list(Outcome):
        raise ValueError(f"the reply {str(reply)[:200]!r} has no outcome")
    outcome = Outcome(reply["outcome"])
    score = None if outcome is Outcome.FAULT else reply.get("score", float(outcome is Outcome.CORRECT))
    if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
        raise ValueError(f"the score is {score!r}, expected a number")
    extracted = reply.get("extracted")
    return Verdict(
        outcome,
        score,
        extracted=None if extracted is None else str(extracted)[:4000],
        detail=str(reply.get("detail", ""))[:1000],
        shaping=float(reply.get("shaping", 0.0)),
    )
