"""Kept sets: the tokens that top-p, top-k and min-p left when a token was sampled, as compact bytes.

Of each sampled token the other kept ids, ascending: each as its distance to the one before it (from -1), in
LEB128, then a byte 0. No distance is 0 and LEB128 ends in no byte 0, so a byte 0 is the end of a set: sets
are counted, cut and joined without reading them. A token that was certain has one byte.
"""

from collections.abc import Sequence

KEPT_SETS = "kept_sets"
"""Name of the column (`records.Columns`)."""
END = b"\0"


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
    return bytes(found) + END


def num_kept_sets(packed: bytes) -> int:
    """Sets in joined bytes."""
    return packed.count(END)


def split_kept_sets(packed: bytes) -> list[bytes]:
    """Each set of joined bytes."""
    return [part + END for part in packed.split(END)[:-1]]


def first_kept_sets(packed: bytes, count: int) -> bytes:
    """The first `count` sets of joined bytes, or all where there are fewer."""
    parts = packed.split(END, count)
    return packed if len(parts) <= count else END.join(parts[:count]) + END * (count > 0)
