"""Endless streams on a server, read as a run reads them, in a thread of their own.

With weights that name their version (`models.write_version`) each token itself says which weights made it,
and so shows whether the version that the server says of it is true.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp

from asyncrl.records import SamplingParams, Segment
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.sglang.http import new_session
from asyncrl.serving.sglang.messages import Prefix, generate_body, stream
from tests.benchmarks.acceptance.models import VOCABULARY, token_of

NUM_STREAMS = 24
LONGEST = 1000
"""Tokens of a response: several versions long."""
NO_STOP = (10 * VOCABULARY,)


@dataclass(slots=True)
class Proof:
    """The versions of the tokens, as the tokens themselves name them."""

    tokens: Counter[int] = field(default_factory=Counter)
    """Version -> tokens."""
    wrong: list[str] = field(default_factory=list)
    """A clause for each segment with a token of other weights than the version it carries."""
    num_mixed: int = 0
    """Responses with tokens of several versions."""

    def see(self, segment: Segment) -> None:
        self.tokens[segment.version] += len(segment.tokens)
        wanted = token_of(segment.version)
        if others := [token for token in segment.tokens if token != wanted]:
            self.wrong.append(
                f"{len(others)} of {len(segment.tokens)} tokens of version {segment.version} are "
                f"{others[0]}, not {wanted}"
            )


class Load:
    """Start with `loading`."""

    def __init__(self, url: str) -> None:
        self.proof = Proof()
        self.failure: Exception | None = None
        self._url = url
        self._is_over = False
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def wait_for_tokens(self, version: int, count: int, *, seconds: float) -> None:
        """Raises ValueError where the server does not stream that many tokens of `version` meanwhile."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.failure is not None or self.proof.tokens[version] >= count, seconds
            )
        if self.failure is not None:
            raise self.failure
        if (found := self.proof.tokens[version]) < count:
            raise ValueError(f"{found} tokens of version {version} within {seconds:.0f} s, expected {count}")

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        # The thread hands its failure to the one that waits.
        except Exception as error:
            with self._changed:
                self.failure = error
                self._changed.notify_all()

    def end(self) -> None:
        self._is_over = True

    async def _run(self) -> None:
        async with new_session() as session:
            await asyncio.gather(*(self._stream(session) for _ in range(NUM_STREAMS)))

    async def _stream(self, session: aiohttp.ClientSession) -> None:
        while not self._is_over:
            number = next(self._numbers)
            prefix = Prefix(f"load-{number:08d}", [3, 5, 7, 11 + number % 40], LONGEST)
            body = generate_body([prefix], SamplingParams(1.0, LONGEST, NO_STOP), salt="load")
            confirmation, versions = Confirmation(0), set[int]()
            async with contextlib.aclosing(stream(session, self._url, body)) as chunks:
                async for chunk in chunks:
                    segments = confirmation.feed(chunk)
                    with self._changed:
                        for segment in segments:
                            self.proof.see(segment)
                            versions.add(segment.version)
                        self._changed.notify_all()
                    if self._is_over:
                        break
            self.proof.num_mixed += len(versions) > 1


@contextlib.contextmanager
def loading(url: str) -> Iterator[Load]:
    load = Load(url)
    thread = threading.Thread(target=load.run, daemon=True)
    thread.start()
    try:
        yield load
    finally:
        load.end()
        thread.join(60)
