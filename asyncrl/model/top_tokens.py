"""A teacher's k likeliest tokens at each sampled position, as compact bytes.

Of each position k ids as int32, then their k natural log-probs as float32, both little-endian, likeliest
first: 8 k bytes. An id that the policy never samples has the log-prob -inf, and so no probability.
"""

from collections.abc import Collection, Sequence

import numpy as np

TEACHER_LOGPROBS = "teacher_logprobs"
"""Name of the column (`records.Columns`) of a teacher's log-probs, float32 of each sampled token."""
TEACHER_TOP = "teacher_top"
"""Name of the column of what is packed here."""
ENTRY_BYTES = 8
"""Size of an id and its log-prob."""


def pack_top(rows: Sequence[Sequence[tuple[float, int]]], never: Collection[int]) -> bytes:
    """[T][k] (log-prob, id) -> bytes; ids of `never` lose their probability."""
    if not rows:
        return b""
    ids = np.asarray([[token for _, token in row] for row in rows], "<i4")
    logprobs = np.asarray(
        [[-np.inf if token in never else logprob for logprob, token in row] for row in rows], "<f4"
    )
    return np.stack([ids, logprobs.view("<i4")], axis=1).tobytes()


def top_size(packed: bytes, num_tokens: int) -> int:
    """The k that `packed` has for each of `num_tokens` positions; 0 where it is empty. Raises ValueError
    where its size does not fit them."""
    size, rest = divmod(len(packed), ENTRY_BYTES * num_tokens) if num_tokens else (0, len(packed))
    if rest:
        raise ValueError(f"{len(packed)} bytes are not the likeliest tokens of {num_tokens} positions")
    return size


def split_top(packed: bytes, num_tokens: int) -> list[bytes]:
    """The bytes of each position."""
    size = ENTRY_BYTES * top_size(packed, num_tokens)
    return [packed[first : first + size] for first in range(0, len(packed), size)] if size else []


def unpack_top(packed: bytes, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log-probs), [T, k] int32 and float32."""
    size = top_size(packed, num_tokens)
    values = np.frombuffer(packed, "<i4").reshape(num_tokens, 2, size)
    return values[:, 0], values[:, 1].view("<f4")
