import random

import numpy as np
import pytest
from fakes.sequences import sequence

from asyncrl.trainer.packing.cpu_attention import LONGEST, make_blocks
from asyncrl.trainer.packing.prefix_tree import pack_tree


def test_short_responses_share_the_block_of_their_prompt():
    (block,) = make_blocks(pack_tree([sequence([1] * 10, [a, a, 0]) for a in (2, 3, 4)]).rows)
    assert block.tokens.tolist() == list(range(16))
    looks = [np.flatnonzero(row).tolist() for row in block.mask]
    prompt = list(range(10))
    assert looks[:10] == [prompt[: i + 1] for i in range(10)]
    assert looks[10:] == [
        [*prompt, 10],
        [*prompt, 10, 11],
        [*prompt, 12],
        [*prompt, 12, 13],
        [*prompt, 14],
        [*prompt, 14, 15],
    ]


def test_long_responses_have_a_block_each_and_no_mask():
    blocks = make_blocks(pack_tree([sequence([1] * 10, [a] * 60) for a in (2, 3, 4)]).rows)
    assert [len(block.tokens) for block in blocks] == [69] * 3
    assert all(block.mask is None for block in blocks)


def test_prompts_that_share_little_have_blocks_of_their_own():
    sequences = [sequence([1, *[a] * 20], [b, 0]) for a in (2, 3) for b in (4, 5, 6)]
    assert [len(block.tokens) for block in make_blocks(pack_tree(sequences).rows)] == [24, 24]


def test_no_block_is_longer_than_its_kernel_takes():
    prompt = [1] * (LONGEST - 10)
    blocks = make_blocks(pack_tree([sequence(prompt, [a, 0]) for a in range(2, 30)]).rows)
    assert [len(block.tokens) for block in blocks] == [LONGEST, LONGEST, LONGEST - 10 + 8]


@pytest.mark.parametrize("seed", range(100))
def test_each_place_looks_at_what_stands_before_it_in_its_sequences(seed: int):
    source = random.Random(seed)
    prompts = [source.choices(range(4), k=source.randint(1, 20)) for _ in range(source.randint(1, 4))]
    sequences = [
        sequence(source.choice(prompts), source.choices(range(3), k=source.randint(0, 6))) for _ in range(20)
    ]
    tree = pack_tree(sequences)
    blocks = make_blocks(tree.rows)
    pasts = {int(place): set(row[: i + 1].tolist()) for row in tree.rows for i, place in enumerate(row)}
    assert set(np.concatenate([block.tokens for block in blocks]).tolist()) == set(pasts)
    for block in blocks:
        size = len(block.tokens)
        mask = np.tri(size, dtype=np.bool_) if block.mask is None else block.mask
        assert [set(block.tokens[row].tolist()) for row in mask] == [pasts[t] for t in block.tokens.tolist()]
