"""Units of attention on a CPU: one sequence, or neighbors that share most of their tokens.

Each sequence laid out whole repeats a prompt for every response to it. Where responses are short that is most
of the work: a block holds shared tokens once and a mask says which of its places a place looks at.

Shapes: L places of a block.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from asyncrl.trainer.packing.cpu_attention import LONGEST
from asyncrl.trainer.packing.prefix_tree import num_common


@dataclass(frozen=True, slots=True)
class Block:
    tokens: np.ndarray
    """[L] int64, the packed token at each place."""
    mask: np.ndarray | None = None
    """[L, L] bool, the places that each looks at; None where it is all before it and itself."""


def make_blocks(rows: list[np.ndarray]) -> list[Block]:
    """Blocks of sequences, of which `rows` are the packed tokens; in their order, which has like beside like.

    A sequence joins the block before it where their scores together are no more than apart, L x L each.
    """
    blocks, members, size = [], [(rows[0], 0)], len(rows[0])
    for before, row in pairwise(rows):
        common = num_common(before, row)
        joint = size + len(row) - common
        if joint**2 <= size**2 + len(row) ** 2 and joint <= LONGEST:
            members.append((row, common))
            size = joint
        else:
            blocks.append(_block(members, size))
            members, size = [(row, 0)], len(row)
    return [*blocks, _block(members, size)]


def _block(members: list[tuple[np.ndarray, int]], size: int) -> Block:
    """Lays sequences out as one block; each comes with the number of tokens it shares with the one before."""
    if len(members) == 1:
        return Block(members[0][0])
    tokens, mask = np.empty(size, np.int64), np.zeros((size, size), np.bool_)
    end, places = 0, np.empty(0, np.int64)
    for row, common in members:
        places = np.concatenate([places[:common], np.arange(end, end + len(row) - common)])
        own = places[common:]
        tokens[own] = row[common:]
        mask[np.ix_(own, places)] = np.tri(len(row), dtype=np.bool_)[common:]
        end += len(own)
    return Block(tokens, mask)
