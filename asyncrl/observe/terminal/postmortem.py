"""The post-mortem of a run that failed: post-mortem.txt in the run folder.

Holds the cause, what waited for what, the state of servers and queue, the last events and the last lines of
each process. Written by the launcher; a later failure replaces it.
"""

import logging
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from asyncrl.system.places import LOGS
from verifiers.storable import storable

POST_MORTEM = "post-mortem.txt"
NUM_EVENTS = 60
NUM_LOG_LINES = 25
_TAIL_BYTES = 16_384


class RecentEvents(logging.Handler):
    """Remembers the last NUM_EVENTS warnings and errors of this process. Context manager."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=NUM_EVENTS)

    def emit(self, record: logging.LogRecord) -> None:
        self.add(record.getMessage(), seconds=record.created)

    def add(self, text: str, *, seconds: float | None = None) -> None:
        """`seconds` is Unix time; default: now."""
        moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
        self.lines.append(f"{moment:%H:%M:%S} {text}")

    def __enter__(self) -> "RecentEvents":
        logging.getLogger("asyncrl").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("asyncrl").removeHandler(self)


def write_post_mortem(
    run_folder: Path, cause: BaseException, *, state: Mapping[str, str], events: RecentEvents
) -> Path:
    """Writes the file; `state` maps titles to texts of several lines."""
    sections = {
        "What ended the run": f"{type(cause).__name__}: {cause}",
        **state,
        "Last events (UTC)": "\n".join(events.lines),
        **{f"Last lines of {path.name}": _tail(path) for path in sorted((run_folder / LOGS).glob("*.log"))},
    }
    text = "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{body or '(nothing)'}" for title, body in sections.items()
    )
    path = run_folder / POST_MORTEM
    path.write_text(f"{storable(text)}\n", encoding="utf-8")
    return path


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-NUM_LOG_LINES:])
