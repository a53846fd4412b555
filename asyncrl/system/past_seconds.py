"""How long things took before on this machine, so that the next time can say how long it is likely to take.

Owns the file past_seconds.json in asyncrl's cache. It is an estimate's memory and nothing more: where it
cannot be read or written, there is no estimate.
"""

import contextlib
import json
import statistics
from pathlib import Path
from typing import Any

from asyncrl.system.cache import cache_folder
from asyncrl.system.whole_file import write_whole

KEPT = 5
"""Last times of one thing: their median is expected next."""
MOST_THINGS = 200
"""Those noted longest ago are forgotten."""


class PastSeconds:
    """Seconds of earlier times, by what decides how long it takes."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or cache_folder("past_seconds.json")

    def expected(self, like: str) -> float | None:
        """The median of the last times, None without any."""
        known = self._read().get(like)
        return statistics.median(known) if known else None

    def note(self, like: str, seconds: float) -> None:
        known = self._read()
        known[like] = [*known.pop(like, []), round(seconds, 2)][-KEPT:]
        newest = dict(list(known.items())[-MOST_THINGS:])
        # A home that is full or read-only costs the estimate and nothing else. Of two that write at once, one
        # is forgotten.
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(newest, indent=1) + "\n")

    def _read(self) -> dict[str, list[float]]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        things = found.items() if isinstance(found, dict) else ()
        return {like: seconds for like, seconds in things if _are_seconds(seconds)}


def _are_seconds(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(each, int | float) for each in found)
