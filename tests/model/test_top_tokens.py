"""A teacher's likeliest tokens as bytes."""

import math

import numpy as np
import pytest

from asyncrl.model.top_tokens import pack_top, split_top, top_size, unpack_top

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
