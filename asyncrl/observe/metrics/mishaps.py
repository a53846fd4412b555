"""Mishaps of a run: warnings, counted in metrics.jsonl, faults of verifiers by cause, and post-mortem.txt.

A warning is a row {"kind": "event", "event": "warning", "text", "step", "count"}: `step` is the last that had
ended, `count` how often the text was met until then. The first time writes a row, then every tenfold count,
then the end of the run; readers take the row with the highest count. Of one kind of warning at most
MOST_TEXTS texts get rows of their own; further ones are counted together under FURTHER and the first of them.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from asyncrl.journal.rows import RetriedFault
from asyncrl.run.metrics_file import MetricsWriter, Row
from asyncrl.system.places import LOGS
from asyncrl.system.plugins import cause_of
from verifiers.storable import storable

WARNING = "warning"
MOST_TEXTS = 50
MOST_KINDS = 1000
FURTHER = "further warnings like: "


class Warned(TypedDict):
    """One text of the log."""

    text: str
    count: int
    first_step: int
    last_step: int
    first_seconds: float
    """Unix time."""
    last_seconds: float


@dataclass(slots=True)
class _Entry:
    count: int = 0
    num_told: int = 0
    """The count that the file knows."""
    step: int = 0


class WarningLog:
    """Writes rows through `metrics`; may be called from any thread. Calls raise DiskError."""

    def __init__(self, metrics: MetricsWriter, *, step: int = 0) -> None:
        self.step = step
        """The last step that ended."""
        self._metrics = metrics
        self._entries: dict[str, _Entry] = {}
        self._texts_of: Counter[str] = Counter()
        self._further: dict[str, str] = {}
        """Kind -> the text that its further texts are counted under."""
        self._lock = threading.Lock()

    def add(self, text: str, *, kind: str) -> None:
        """A warning was shown; `kind` is the same for those that differ in a name or number alone."""
        with self._lock:
            name = self._name(text, kind)
            entry = self._entries.setdefault(name, _Entry())
            entry.count += 1
            entry.step = self.step
            if entry.count >= 10 * entry.num_told:
                self._tell(name, entry)

    def close(self) -> None:
        """Writes the counts that the file does not know yet."""
        with self._lock:
            for name, entry in self._entries.items():
                if entry.count > entry.num_told:
                    self._tell(name, entry)

    def _name(self, text: str, kind: str) -> str:
        if text in self._entries:
            return text
        if kind not in self._texts_of and len(self._texts_of) >= MOST_KINDS:
            # A text with numbers in it was given as its own kind, again and again.
            kind = ""
        self._texts_of[kind] += 1
        if self._texts_of[kind] <= MOST_TEXTS:
            return text
        return self._further.setdefault(kind, FURTHER + text)

    def _tell(self, name: str, entry: _Entry) -> None:
        entry.num_told = entry.count
        self._metrics.event(WARNING, text=name, step=entry.step, count=entry.count)


def warnings_of(events: Iterable[Row]) -> list[Warned]:
    """The log of a run, over all its starts: each text once, the latest first."""
    found: dict[str, Warned] = {}
    earlier: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for row in events:
        if row["event"] != WARNING:
            continue
        text, count, step, seconds = row["text"], row["count"], row["step"], row["time_seconds"]
        # Each start counts from 1.
        if count <= known[text]:
            earlier[text] += known[text]
        known[text] = count
        # Popped, so that it takes its new place in the order.
        before = found.pop(text, None)
        found[text] = Warned(
            text=text,
            count=earlier[text] + count,
            first_step=step if before is None else before["first_step"],
            last_step=step,
            first_seconds=seconds if before is None else before["first_seconds"],
            last_seconds=seconds,
        )
    return list(reversed(found.values()))


MOST_CAUSES = 8
"""Rows of a table; the rest is summed up in one."""


@dataclass(frozen=True, slots=True)
class FaultCause:
    cause: str
    num_verdicts: int
    task_id: str
    """Task of the first verdict."""
    detail: str
    """Detail of the first verdict."""
    num_retried: int = 0
    """Further faults of this cause, whose retry gave a verdict."""


def group_faults(
    faults: Iterable[tuple[str, str, int]], retried: Iterable[RetriedFault] = ()
) -> list[FaultCause]:
    """The causes of (task id, detail, number of verdicts), and of faults whose retry gave a verdict: the most
    frequent first."""
    found: dict[str, FaultCause] = {}
    for task_id, detail, count in faults:
        cause = cause_of(detail)
        first = found.get(cause, FaultCause(cause, 0, task_id, detail))
        found[cause] = FaultCause(cause, first.num_verdicts + count, first.task_id, first.detail)
    for row in retried:
        first = found.get(row["cause"], FaultCause(row["cause"], 0, row["task_id"], row["detail"]))
        found[row["cause"]] = replace(first, num_retried=first.num_retried + row["num_faults"])
    ordered = sorted(found.values(), key=lambda each: (-each.num_verdicts, -each.num_retried, each.cause))
    if len(ordered) <= MOST_CAUSES:
        return ordered
    kept, rest = ordered[:MOST_CAUSES], ordered[MOST_CAUSES:]
    total, retries = sum(each.num_verdicts for each in rest), sum(each.num_retried for each in rest)
    words = f"{len(rest)} other causes"
    return [*kept, FaultCause(words, total, rest[0].task_id, rest[0].detail, retries)]


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
