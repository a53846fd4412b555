"""Names a verifier that gives no verdict while responses wait for it: nothing else tells a slow verifier from
a run that hangs."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asyncrl.loops import now_seconds

log = logging.getLogger(__name__)

FIRST_SECONDS = 10.0
"""Without any verdict of a verifier until it is named; then each time that the silence has doubled."""
LOOK_SECONDS = 2.0


@dataclass(slots=True)
class _Silence:
    """The silence of one verifier while responses wait for it."""

    since_seconds: float
    """The last verdict, or the first response that waits."""
    num_waiting: int = 0
    told_seconds: float = 0.0
    """How long it had lasted when it was told; 0 where it was not."""


class VerdictWaits:
    def __init__(self, *, clock: Callable[[], float] = now_seconds) -> None:
        self._clock = clock
        self._silences: dict[str, _Silence] = {}

    @contextlib.contextmanager
    def waiting(self, verifier: str, num_responses: int = 1) -> Iterator[None]:
        """The block ends with a verdict on each of the responses, or without one where it raises."""
        silence = self._silences.setdefault(verifier, _Silence(self._clock()))
        silence.num_waiting += num_responses
        try:
            yield
            self._answered(verifier, silence)
        finally:
            silence.num_waiting -= num_responses
            if not silence.num_waiting:
                del self._silences[verifier]

    def _answered(self, verifier: str, silence: _Silence) -> None:
        now = self._clock()
        if silence.told_seconds:
            seconds = now - silence.since_seconds
            log.warning('the verifier "%s" answers again, after %.0f s.', verifier, seconds)
        silence.since_seconds, silence.told_seconds = now, 0.0

    def look(self) -> None:
        """Names the verifiers that have been silent for too long; called every few seconds."""
        for verifier, silence in self._silences.items():
            seconds = self._clock() - silence.since_seconds
            if seconds < max(FIRST_SECONDS, 2 * silence.told_seconds):
                continue
            silence.told_seconds = seconds
            log.warning(
                'waiting for the verifier "%s": %.0f s without a verdict, %d responses wait.',
                verifier,
                seconds,
                silence.num_waiting,
            )

    async def watch(self) -> None:
        """Looks, without end."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()
