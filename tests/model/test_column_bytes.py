"""Kept sets as bytes: any set comes back, and joined ones are counted and cut without reading them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.model.column_bytes import (
    first_kept_sets,
    num_kept_sets,
    pack_kept_set,
    pack_top,
    split_kept_sets,
    split_top,
    top_size,
    unpack_top,
)

IDS = st.sets(st.one_of(st.integers(0, 300), st.integers(0, 2**31 - 1)), min_size=1, max_size=40)


def test_a_certain_token_has_one_byte_and_others_about_two_a_kept_id() -> None:
    assert pack_kept_set(7, [7]) == b"\0"
    # Distances 1, 2 and 150,000 - 2 = 0b1001_0010011_1101110.
    assert pack_kept_set(5, [2, 5, 0, 150_000]) == b"\x01\x02\xee\x93\x09\x00"
    assert len(pack_kept_set(1, range(20))) == 20


@given(st.lists(IDS, max_size=8), st.integers(0, 9), st.randoms(use_true_random=False))
def test_joined_sets_are_counted_split_and_cut(sets, count, source) -> None:
    packed = [pack_kept_set(source.choice(sorted(each)), list(each)) for each in sets]
    joined = b"".join(packed)
    assert num_kept_sets(joined) == len(sets)
    assert split_kept_sets(joined) == packed
    assert first_kept_sets(joined, count) == b"".join(packed[:count])


@pytest.mark.parametrize("kept", [[], [2, 3], [1, 1, 2], [1, 2, 2], [-1, 1]])
def test_a_set_without_its_token_or_with_an_id_twice_is_refused(kept: list[int]) -> None:
    with pytest.raises(ValueError, match="kept ids"):
        pack_kept_set(1, kept)


ROWS = [[(-0.25, 70000), (-1.5, 3)], [(-0.5, 1), (-2.0, 7)]]


def test_ids_and_log_probs_come_back_and_what_is_never_sampled_has_no_probability() -> None:
    packed = pack_top(ROWS, {7})
    assert len(packed) == 2 * 2 * 8 and top_size(packed, 2) == 2
    ids, logprobs = unpack_top(packed, 2)
    assert ids.tolist() == [[70000, 3], [1, 7]]
    assert logprobs.tolist() == [[-0.25, -1.5], [-0.5, -math.inf]]
    assert [unpack_top(each, 1)[0].tolist() for each in split_top(packed, 2)] == [[[70000, 3]], [[1, 7]]]


def test_without_any_there_are_no_bytes_and_other_sizes_are_refused() -> None:
    assert pack_top([], ()) == b"" and top_size(b"", 3) == 0 and split_top(b"", 3) == []
    assert np.array_equal(unpack_top(b"", 0)[0], np.empty((0, 0)))
    with pytest.raises(ValueError, match="32 bytes are not the likeliest tokens of 3 positions"):
        top_size(pack_top(ROWS, ()), 3)
