"""Rows of answers in JSON lines, for `asyncrl verify`: reading with file and line, grading
in order, summing up."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from verifiers import strict_json
from verifiers.pool import VerifierPool
from verifiers.task import Task
from verifiers.verdict import Verdict, fault

# Rows in flight per worker: enough to keep it busy, few enough to write results as they come.
_WINDOW_PER_WORKER = 32


class RowError(ValueError):
    """A row that is not what was expected; the message has file and line."""


@dataclass(frozen=True, slots=True)
class ResponseRow:
    where: str
    fields: dict[str, Any]
    gold: Any
    response: str

    def task(self) -> Task:
        """Made of the columns "prompt", text or chat messages, and all others."""
        prompt = self.fields.get("prompt")
        messages = tuple(m for m in prompt if isinstance(m, dict)) if isinstance(prompt, list) else ()
        columns = {name: value for name, value in self.fields.items() if name not in ("gold", "response")}
        text = prompt if isinstance(prompt, str) else ""
        return Task(text, messages, columns, (self.response,))


@dataclass(slots=True)
class GradingSummary:
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    num_bad_golds: int = 0

    def add(self, verdict: Verdict) -> None:
        self.outcomes[verdict.outcome.value] += 1
        self.seconds.append(verdict.seconds)

    def sentence(self, wall_seconds: float) -> str:
        total = len(self.seconds)
        if not total:
            return "0 rows."
        ordered = sorted(self.seconds)
        counts = ", ".join(
            f"{self.outcomes[name]} {name}"
            for name in ("correct", "wrong", "no_answer", "fault")
            if self.outcomes[name]
        )
        bad = f" {self.num_bad_golds} of the faults: the gold cannot be read." if self.num_bad_golds else ""
        return (
            f"{total} rows in {wall_seconds:.1f} s: {counts}.{bad} Per verdict: median "
            f"{ordered[total // 2] * 1e3:.2f} ms, 99 % within {ordered[total * 99 // 100] * 1e3:.1f} ms, "
            f"longest {ordered[-1] * 1e3:.0f} ms."
        )


def read_rows(lines: Iterable[str], name: str) -> Iterator[ResponseRow]:
    """Rows with "gold" and "response"; blank lines are skipped. Raises RowError."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _read_row(line, f"{name}:{number}")


def _read_row(line: str, where: str) -> ResponseRow:
    try:
        fields = strict_json.loads(line)
    except ValueError as error:
        raise RowError(f"{where}: not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise RowError(f"{where}: the row is {line.strip()[:80]}, expected an object with keys.")
    for name in ("gold", "response"):
        if name not in fields:
            raise RowError(
                f"{where}: the row has no {name!r}, only {', '.join(map(repr, fields)) or 'nothing'}."
            )
    if not isinstance(fields["response"], str):
        raise RowError(f"{where}: 'response' is {fields['response']!r:.80}, expected a string.")
    return ResponseRow(where, fields, fields["gold"], fields["response"])


async def grade_rows(
    rows: AsyncIterator[ResponseRow],
    pool: VerifierPool,
    verifier_name: str,
    options: Mapping[str, object],
    *,
    folder: Path | None,
    num_workers: int,
) -> AsyncIterator[tuple[ResponseRow, Verdict, bool]]:
    """(row, verdict, whether the gold was unreadable), in the order of the rows, several at a time."""

    # Rows of one task repeat its gold.
    @lru_cache(maxsize=10_000)
    def parsed(gold: str) -> tuple[Any, str | None]:
        try:
            return pool.parse_reference(verifier_name, options, json.loads(gold), folder=folder), None
        except ValueError as error:
            return None, str(error)

    async def grade(row: ResponseRow) -> tuple[ResponseRow, Verdict, bool]:
        reference, problem = parsed(json.dumps(row.gold))
        if problem is not None:
            return row, fault(f"bad gold: {problem}"), True
        verdict = await pool.verify(
            verifier_name, options, row.response, reference, folder=folder, task=row.task
        )
        return row, verdict, False

    waiting: deque[asyncio.Task[tuple[ResponseRow, Verdict, bool]]] = deque()
    try:
        async for row in rows:
            waiting.append(asyncio.create_task(grade(row), name=f"verify {row.where}"))
            while waiting and (waiting[0].done() or len(waiting) >= num_workers * _WINDOW_PER_WORKER):
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """The verdict as `asyncrl verify` writes it."""
    credits = {"turn_rewards": verdict.turn_rewards, "spans": verdict.spans} if verdict.has_credits() else {}
    return {
        "outcome": verdict.outcome.value,
        "score": verdict.score,
        "extracted": verdict.extracted,
        "detail": verdict.detail,
        "seconds": round(verdict.seconds, 6),
        **credits,
        **({"scores": dict(verdict.scores)} if verdict.scores else {}),
    }
