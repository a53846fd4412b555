"""Answers to turns as the journal has them, for people: calls with their results, messages, seconds."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from asyncrl.journal.packing import unpack_tokens
from asyncrl.journal.rows import CallRow, MessageRow, ObservationRow
from verifiers.storable import storable


def read_observations(db: sqlite3.Connection, trajectory_id: str) -> list[ObservationRow]:
    """In the order of turns."""
    rows = db.execute(
        "SELECT position, turn, turn_finish, tokens, notes FROM observations WHERE trajectory_id = ? "
        "ORDER BY position",
        (trajectory_id,),
    )
    return [_row(*row) for row in rows]


def observed_texts(notes: str) -> Iterable[str]:
    """Texts of an observation that a search looks through: arguments, results and messages."""
    found = _read(notes)
    for call in _calls(found):
        yield from map(as_text, call["arguments"].values())
        yield call["error"]
    for message in _messages(found):
        yield message["text"]


def as_text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _row(position: int, turn: int, turn_finish: str, tokens: bytes, notes: str) -> ObservationRow:
    found = _read(notes)
    calls = _calls(found)
    return ObservationRow(
        position=position,
        turn=turn,
        turn_finish=turn_finish,
        tokens=unpack_tokens(tokens),
        seconds=found.get("seconds"),
        reward=found.get("reward"),
        calls=calls,
        # Those of calls are their results.
        messages=[] if calls else _messages(found),
    )


def _read(notes: str) -> Mapping[str, Any]:
    """Nothing where the notes were too long to be stored whole."""
    try:
        found = json.loads(notes)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _calls(found: Mapping[str, Any]) -> list[CallRow]:
    calls = found.get("calls") or []
    results = _messages(found)
    errors = found.get("are_errors") or [False] * len(calls)
    return [
        CallRow(
            name=storable(call["name"]),
            arguments=call["arguments"],
            error=storable(call["error"]),
            output=result["text"],
            is_error=bool(call["error"]) or is_error,
        )
        for call, result, is_error in zip(calls, results, errors, strict=False)
    ]


def _messages(found: Mapping[str, Any]) -> list[MessageRow]:
    return [
        MessageRow(role=as_text(message.get("role", "")), text=as_text(message.get("content", "")))
        for message in found.get("messages") or []
    ]
