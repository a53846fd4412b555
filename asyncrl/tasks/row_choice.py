"""Which rows become tasks: data.filter, data.selection.column, duplicate prompts."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from asyncrl.data.rows import Row, Unanswered
from asyncrl.errors import InputError
from asyncrl.recipe import Data
from asyncrl.recipe.row_filter import RowFilter
from asyncrl.system.words import as_written
from asyncrl.tasks.packed_rows import Findings


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The default uses every row."""

    filter: RowFilter | None = None
    level_column: str | None = None

    @classmethod
    def of(cls, data: Data) -> "RowChoice":
        return cls(data.row_filter(), data.selection.column)

    def columns(self) -> tuple[str, ...]:
        """Columns that rows have to pick."""
        named = () if self.filter is None else self.filter.columns()
        return tuple(dict.fromkeys([*named, *([] if self.level_column is None else [self.level_column])]))

    def wants(self, row: Row | Unanswered) -> bool:
        """Raises InputError for a value that the filter cannot compare."""
        try:
            return self.filter is None or self.filter.holds(row.picked)
        except ValueError as error:
            raise InputError(f"{row.where}: {error}. Correct the row, or data.filter.") from error

    def level(self, row: Row) -> float | None:
        """How hard the row is; None where nothing asks. Raises InputError for what is no number."""
        if self.level_column is None:
            return None
        level = row.picked[self.level_column]
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not math.isfinite(level):
            raise InputError(
                f'{row.where}: "{self.level_column}" is {as_written(level)[:80]}, expected a number, by '
                f"which data.selection.column orders rows. Correct the row, or leave such rows out by "
                f"data.filter."
            )
        return float(level)


@dataclass
class WantedRows:
    """The rows that `choice` wants, in their order; others are counted as they are passed."""

    rows: Iterable[Row | Unanswered]
    choice: RowChoice
    num_left_out: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[Row | Unanswered]:
        """Raises InputError."""
        for row in self.rows:
            if self.choice.wants(row):
                yield row
            else:
                self.num_left_out += 1


# Remembers digests of 16 bytes, not rows: a million prompts take about 150 MB.
MAX_KNOWN_GOLDS = 200_000
_MAX_KNOWN_CHARACTERS = 200
"""Longest gold that is remembered as it is."""

ShortGold = tuple[str, type, object]
"""(verifier, kind, gold): what many rows may share."""


def short_gold(gold: Any, verifier_key: str) -> ShortGold | None:
    """None for a gold that is not worth remembering."""
    is_short = isinstance(gold, (int, float)) or (
        isinstance(gold, str) and len(gold) <= _MAX_KNOWN_CHARACTERS
    )
    return (verifier_key, type(gold), gold) if is_short else None


class Repeats:
    """Prompts seen so far."""

    def __init__(self, findings: Findings) -> None:
        """Duplicate prompts with another answer are counted in `findings`."""
        self._findings = findings
        self._answers: dict[bytes, bytes] = {}
        """Digest of each prompt -> digest of its first answer."""
        self._other_answers: set[bytes] = set()
        self._gold_digests: dict[ShortGold, bytes] = {}

    def add(self, row: Row, verifier_key: str, gold: ShortGold | None) -> bool:
        """Whether an earlier row asked the same and has the same answer; `gold` is that of `row`. Where
        columns are kept, rows with other ones ask something else."""
        asked, answered = _asked_digest(row), self._answer_digest(row.answer, verifier_key, gold)
        num_known = len(self._answers)
        known = self._answers.setdefault(asked, answered)
        if len(self._answers) > num_known:
            return False
        if known == answered or asked + answered in self._other_answers:
            return True
        self._other_answers.add(asked + answered)
        self._findings.num_contradicting += 1
        self._findings.first_contradicting = self._findings.first_contradicting or row.where
        return False

    def forget(self) -> None:
        """Frees what only more rows would need; the counts stay."""
        self._answers.clear()
        self._other_answers.clear()
        self._gold_digests.clear()

    def _answer_digest(self, answer: Any, verifier_key: str, gold: ShortGold | None) -> bytes:
        if gold is None:
            return _digest(answer, verifier_key)
        found = self._gold_digests.get(gold)
        if found is None:
            found = _digest(answer, verifier_key)
            if len(self._gold_digests) < MAX_KNOWN_GOLDS:
                self._gold_digests[gold] = found
        return found


def _asked_digest(row: Row) -> bytes:
    if row.columns is None:
        return _digest(row.prompt)
    environment = row.environment and [row.environment.name, row.environment.options]
    return _digest([row.prompt, environment, row.columns])


def _digest(value: Any, verifier_key: str = "") -> bytes:
    if isinstance(value, str):
        text = f"text {verifier_key} {value}"
    elif isinstance(value, list) and all(map(_is_plain_message, value)):
        # As canonical as JSON, and faster.
        text = f"chat {verifier_key}"
        for message in value:
            role, content = message["role"], message["content"]
            text += f" {len(role)} {role} {len(content)} {content}"
    else:
        text = f"JSON {verifier_key} {json.dumps(value, sort_keys=True, default=str)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _is_plain_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and len(message) == 2
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    )
