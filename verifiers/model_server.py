"""A server with a model that judges responses: how a verifier asks it, whatever the question."""

import time
from collections.abc import Callable
from typing import TypeVar

from verifiers.posting import Poster, Unanswered, key_headers
from verifiers.verdict import Verdict, fault
from verifiers.verifier import COUNTERS, VerifierUnavailable

T = TypeVar("T")


class ModelServer:
    """Asks through a Poster, with the server's key; counts the time, and turns failures into faults."""

    def __init__(self, poster: Poster, key_variable: str) -> None:
        """`key_variable` as for key_headers."""
        self.url = poster.url
        self.longest_seconds = poster.longest_seconds
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self._poster = poster
        self._key_variable = key_variable

    def check_key(self) -> None:
        """Raises VerifierUnavailable where the key is not in the environment."""
        key_headers(self._key_variable)

    async def verdict(self, body: bytes, read: Callable[[bytes], Verdict], *, in_turn: bool) -> Verdict:
        """The verdict that `read` finds in the reply; a FAULT without one. `in_turn`: see ask_in_turn."""
        try:
            return await self.ask(body, read, in_turn=in_turn)
        except (Unanswered, VerifierUnavailable) as error:
            return fault(str(error))

    async def ask(self, body: bytes, read: Callable[[bytes], T], *, in_turn: bool) -> T:
        """The reply as `read` gives it. Raises Unanswered and VerifierUnavailable."""
        ask = self._poster.ask_in_turn if in_turn else self._poster.ask
        began = time.perf_counter()
        try:
            return await ask(body, key_headers(self._key_variable), read)
        finally:
            self.counters["request_seconds"] += time.perf_counter() - began
