"""Kept sets as bytes: any set comes back, and joined ones are counted and cut without reading them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.model.kept_sets import first_kept_sets, num_kept_sets, pack_kept_set, split_kept_sets

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
