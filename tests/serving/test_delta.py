"""Deltas: exact for any bits, and anything that is not one is refused."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.serving.delta import ESCAPE, DeltaRefused, DeltaRule, Words, decode, encode, word_type

STATES = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 300)).flatmap(
    lambda it: st.tuples(*[arrays.arrays(word_type(it[0]), it[1])] * 2, st.booleans())
)
"""Any bits of two versions, and whether the delta is compressed."""


def applied(old: Words, data: bytes) -> Words:
    positions, changes = decode(data, num_words=len(old), kind=old.dtype)
    new = old.copy()
    new[positions] ^= changes
    return new


def delta(old: Words, new: Words, *, is_compressed: bool = False) -> bytes:
    positions = np.flatnonzero(old != new)
    return encode(positions, (old ^ new)[positions], is_compressed=is_compressed)


@given(STATES)
def test_a_decoded_delta_is_the_new_version_byte_for_byte(state) -> None:
    old, new, is_compressed = state
    assert applied(old, delta(old, new, is_compressed=is_compressed)).tobytes() == new.tobytes()


@pytest.mark.parametrize("gap", [0, 1, ESCAPE - 1, ESCAPE, ESCAPE + 1, 2 * ESCAPE, 5 * ESCAPE + 7])
def test_a_gap_of_any_length_is_kept(gap: int) -> None:
    old = np.zeros(gap + 3, np.uint16)
    new = old.copy()
    new[[gap, gap + 2]] = 7, 9
    data = delta(old, new)
    assert np.array_equal(applied(old, data), new)
    # 2 bytes for each gap, and one more for each 65,535 words of it; 2 for each change.
    assert len(data) == 17 + 2 * (2 + gap // ESCAPE) + 2 * 2


def test_a_hundredth_of_the_words_takes_little_more_than_a_hundredth_of_the_bytes() -> None:
    generator = np.random.default_rng(0)
    old = generator.integers(0, 2**16, 200_000, np.uint16)
    new = old.copy()
    # The last bit, as of a small step.
    new[generator.choice(len(old), 2_000, replace=False)] ^= 1
    assert len(delta(old, new, is_compressed=True)) < 0.012 * old.nbytes


@given(st.binary(max_size=80), st.integers(0, 40))
def test_other_bytes_are_refused_or_stay_inside_of_the_tensor(data: bytes, num_words: int) -> None:
    try:
        positions, changes = decode(data, num_words=num_words, kind=word_type(2))
    except DeltaRefused:
        return
    assert len(positions) == len(changes) and (positions < num_words).all() and (positions >= 0).all()


@given(st.integers(0, 400), st.booleans())
def test_a_torn_delta_is_refused(length: int, is_compressed: bool) -> None:
    old, new = np.zeros(100, np.uint16), np.arange(100, dtype=np.uint16)
    data = delta(old, new, is_compressed=is_compressed)
    with pytest.raises(DeltaRefused):
        applied(old, data[: min(length, len(data) - 1)])


def test_the_first_version_the_large_ones_and_each_twentieth_are_sent_whole() -> None:
    rule = DeltaRule(is_auto=True)
    assert not rule.sends_delta(None) and rule.is_kept()
    assert rule.sends_delta(0.01) and rule.sends_delta(0.25)
    # More than a quarter: servers do not keep it, so the next one has no base.
    assert not rule.sends_delta(0.26) and not rule.is_kept()
    assert not rule.sends_delta(0.01) and rule.is_kept()
    assert [rule.sends_delta(0.01) for _ in range(20)] == [True] * 19 + [False]


def test_deltas_that_a_recipe_asks_for_are_sent_whenever_there_is_a_base() -> None:
    rule = DeltaRule(is_auto=False)
    assert not rule.sends_delta(None)
    assert all(rule.sends_delta(share) for share in [0.01, 0.9] * 20)
    # Written again for a server that found other bytes.
    assert not rule.sends_delta(None) and rule.sends_delta(0.9)
