"""Sequences on the wire: what they have per token as columns, each one array for all sequences.

4 bytes per token and 4 more per sampled one; policy versions are runs of equal ones. A message of lists has
twice as many bytes, and each rank makes an object of each number: 67 million tokens take a minute.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from asyncrl.records import ScoredSequence

CODES: dict[str, Any] = {
    "prompt_tokens": "i",
    "response_tokens": "i",
    "behavior_logprobs": "f",
    "teacher_logprobs": "f",
    "kept": "B",
    "teacher_top": "B",
    "routes": "B",
}
"""Column -> type code of a memoryview. The loss takes log-probs in float32, and servers say them in it."""
_BYTES = tuple(name for name, code in CODES.items() if code == "B")
"""Columns that sequences hold as bytes."""
RUN_CODES: dict[str, Any] = {"token_versions": "i", "are_continued": "?"}
"""Columns that are sent as runs of equal values."""
_KINDS = {"?": "b"}
"""The code in `array` and numpy where they have another."""
_EMPTY: dict[str, Any] = {name: [] for name in (*CODES, *RUN_CODES)} | dict.fromkeys(_BYTES, b"")


@dataclass(frozen=True, slots=True)
class Columns:
    """Sequences, taken apart. Numbers are in this machine's byte order: all of a run have the same."""

    rows: list[ScoredSequence]
    """Without what `values` holds."""
    lengths: dict[str, memoryview]
    """Column -> int64 of each row."""
    values: dict[str, memoryview]
    """Column -> the values of all rows, or the value of each run."""
    runs: dict[str, memoryview]
    """Column -> int64, the length of each run."""


def pack_sequences(sequences: Sequence[ScoredSequence]) -> Columns:
    found = Columns([replace(sequence, **_EMPTY) for sequence in sequences], {}, {}, {})
    for name, code in (CODES | RUN_CODES).items():
        parts = [getattr(sequence, name) for sequence in sequences]
        found.lengths[name] = _bytes(array("q", map(len, parts)))
        flat = array(_KINDS.get(code, code))
        for part in parts:
            flat.extend(array(flat.typecode, part))
        if name in RUN_CODES:
            values = np.asarray(flat)
            starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])[: len(flat)])
            found.runs[name] = _bytes(np.diff(starts, append=len(flat)).astype(np.int64))
            found.values[name] = _bytes(values[starts])
        else:
            found.values[name] = _bytes(flat)
    return found


def unpack_sequences(columns: Columns) -> list[ScoredSequence]:
    """The packed sequences, with views of `columns` for lists."""
    parts: dict[str, list[Any]] = {}
    for name, code in (CODES | RUN_CODES).items():
        flat = columns.values[name]
        if name in RUN_CODES:
            values = np.frombuffer(flat, _KINDS.get(code, code))
            flat = _bytes(np.repeat(values, np.frombuffer(columns.runs[name], np.int64)))
        flat = flat.cast(code)
        ends = accumulate(columns.lengths[name].cast("q"))
        parts[name] = [flat[first:end] for first, end in pairwise(chain([0], ends))]
    for name in _BYTES:
        parts[name] = [bytes(part) for part in parts[name]]
    return [
        replace(row, **dict(zip(parts, own, strict=True)))
        for row, *own in zip(columns.rows, *parts.values(), strict=True)
    ]


def _bytes(values: Any) -> memoryview:
    """The memory of an array, or of nothing."""
    return memoryview(values).cast("B") if len(values) else memoryview(b"")
