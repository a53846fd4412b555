"""Numbers as the journal stores them: tokens and log-probs in 4 bytes, what training knew of them in 2."""

import json
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

NUMBER_BYTES = 4
"""Size of a token and of a log-prob."""
HALF_BYTES = 2
_IS_LITTLE = sys.byteorder == "little"


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """int32, little-endian."""
    return _in_file_order(array("i", tokens)).tobytes()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32, little-endian."""
    return _in_file_order(array("f", logprobs)).tobytes()


def unpack_tokens(blob: bytes) -> list[int]:
    return _in_file_order(array("i", blob)).tolist()


def unpack_logprobs(blob: bytes) -> list[float]:
    return _in_file_order(array("f", blob)).tolist()


def unpack_halves(blob: bytes) -> list[float]:
    """float16, little-endian; may hold NaN."""
    return list(struct.unpack(f"<{len(blob) // HALF_BYTES}e", blob))


def _in_file_order(values: "array[Any]") -> "array[Any]":
    if not _IS_LITTLE:
        values.byteswap()
    return values


def pack_scores(scores: Mapping[str, float]) -> str | None:
    """Name -> score, as JSON; None for none. Floats keep every bit."""
    return json.dumps(dict(scores)) if scores else None


def unpack_scores(text: str | None) -> dict[str, float]:
    return {} if text is None else {name: float(score) for name, score in json.loads(text).items()}


def pack_pairs(pairs: Sequence[tuple[int, float]]) -> str | None:
    """(whole number, float) each, as JSON; None for none. Floats keep every bit."""
    return json.dumps([list(pair) for pair in pairs]) if pairs else None


def unpack_pairs(text: str | None) -> list[tuple[int, float]]:
    return [] if text is None else [(number, float(value)) for number, value in json.loads(text)]
