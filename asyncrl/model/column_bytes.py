"""Columns of sampled tokens that belong to features, as compact bytes (`records.Columns`). No torch: the
controller reads this, and so do servers.

Routes: the experts that a pass took at a position, layer after layer. A row has a model's layers times
experts_per_token ids, one byte each, or two (little-endian) where a layer has more than 256 experts. A
sampled token has the row of the pass that sampled it: the row of the position in front of it. So the last
token of a sequence needs none, and each confirmed token has its own, whenever its stream breaks.

Kept sets: the tokens that top-p, top-k and min-p left when a token was sampled. Of each sampled token the
other kept ids, ascending: each as its distance to the one before it (from -1), in LEB128, then a byte 0. No
distance is 0 and LEB128 ends in no byte 0, so a byte 0 is the end of a set: sets are counted, cut and joined
without reading them. A token that was certain has one byte.

Top tokens: a teacher's k likeliest tokens at each sampled position: k ids as int32, then their k natural
log-probs as float32, both little-endian, likeliest first: 8 k bytes. An id that the policy never samples has
the log-prob -inf, and so no probability.
"""

from collections.abc import Collection, Sequence

import numpy as np

from asyncrl.errors import InputError
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe

ROUTES = "routes"
"""Name of the column (`records.Columns`)."""
FIRST_ROW = "asyncrl_first_row"
"""Name under which a request says which of its positions is the first that a row is asked of."""


def expert_bytes(num_experts: int) -> int:
    """Bytes of an expert's id."""
    return 1 if num_experts <= 256 else 2


def row_bytes(shape: ModelShape) -> int:
    """Bytes of a row; 0 for a model without experts."""
    if shape.num_experts is None:
        return 0
    return shape.num_layers * shape.experts_per_token * expert_bytes(shape.num_experts)


def replayed_row_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Bytes of the row that servers send for each token; 0 where they send none."""
    return row_bytes(shape) if recipe.replays_routes() else 0


def check_routing_replay(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a model without experts."""
    replay = recipe.algorithm.routing_replay
    if replay != "none" and shape.num_experts is None:
        raise InputError(
            f"algorithm.routing_replay is {replay}, but {shape.architecture} has no experts. Remove "
            f"algorithm.routing_replay, or set model.path to a mixture of experts."
        )


KEPT_SETS = "kept_sets"
"""Name of the column (`records.Columns`)."""
SET_END = b"\0"


def pack_kept_set(token: int, kept: Sequence[int]) -> bytes:
    """The set `kept`, which `token` was sampled from. Raises ValueError where that is not one of its distinct
    ids."""
    ids = sorted(kept)
    found, before = bytearray(), -1
    try:
        ids.remove(token)
    except ValueError:
        raise ValueError(f"the token {token} is not among the {len(ids)} kept ids") from None
    for each in ids:
        distance = each - before
        if distance <= 0 or each == token:
            raise ValueError(f"the kept ids {ids[:20]} of token {token} hold one twice or a negative one")
        while distance > 0x7F:
            found.append(distance & 0x7F | 0x80)
            distance >>= 7
        found.append(distance)
        before = each
    return bytes(found) + SET_END


def num_kept_sets(packed: bytes) -> int:
    """Sets in joined bytes."""
    return packed.count(SET_END)


def split_kept_sets(packed: bytes) -> list[bytes]:
    """Each set of joined bytes."""
    return [part + SET_END for part in packed.split(SET_END)[:-1]]


def first_kept_sets(packed: bytes, count: int) -> bytes:
    """The first `count` sets of joined bytes, or all where there are fewer."""
    parts = packed.split(SET_END, count)
    return packed if len(parts) <= count else SET_END.join(parts[:count]) + SET_END * (count > 0)


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
