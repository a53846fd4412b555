"""Names the call of a user's code that does not return: one line, from a thread, while the call blocks."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

FIRST_SECONDS = 5.0
"""Until a call is named; it is named again each time that it has taken twice as long."""
_POLL_SECONDS = 1.0


class SlowCalls:
    """Calls in one thread, one at a time. Costs nothing while none runs."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_busy = threading.Event()
        self._watcher: threading.Thread | None = None
        self._call: tuple[str, float] | None = None
        """(words, when it began)."""
        self._told: tuple[tuple[str, float] | None, float] = None, 0.0
        """The call that was named last, and after how many seconds."""

    @contextlib.contextmanager
    def call(self, words: str) -> Iterator[None]:
        """The block is a call; `words` say which, such as "parse_reference of ./v.py:V on train.jsonl:1"."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="slow calls", daemon=True)
            self._watcher.start()
        self._call = words, self._clock()
        self._is_busy.set()
        try:
            yield
        finally:
            self._call = None
            self._is_busy.clear()

    def look(self) -> None:
        """Names the call that runs, if it is time."""
        call = self._call
        if call is None:
            return
        words, began = call
        seconds = self._clock() - began
        told_call, told_seconds = self._told
        if seconds < (2 * told_seconds if told_call == call else FIRST_SECONDS):
            return
        self._told = call, seconds
        log.warning("WARNING: %s has not returned for %.0f s. Ctrl-C ends the wait.", words, seconds)

    def _watch(self) -> None:
        while self._is_busy.wait():
            time.sleep(_POLL_SECONDS)
            self.look()
