"""Kept sets become tensors, and equal tokens with other kept sets become predictions of their own."""

import random

import numpy as np
import pytest
import torch
from fakes.columns import COLUMNS
from fakes.sequences import with_column, without_column
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.model.column_bytes import KEPT_SETS, pack_kept_set
from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.batch import make_micro_batch
from asyncrl.trainer.packing.terms import KeptSets, unpack_kept_sets


def sequence(name: str, response: list[int], kept: list[list[int]]) -> ScoredSequence:
    size = len(response)
    packed = b"".join(pack_kept_set(token, ids) for token, ids in zip(response, kept, strict=True))
    logprobs, versions, continued = [-0.5] * size, [0] * size, [False] * size
    return ScoredSequence(
        name, [1, 2], response, logprobs, versions, continued, 1.0, 1.0, columns={KEPT_SETS: packed}
    )


def by_row(kept: KeptSets, num_rows: int) -> list[set[int]]:
    assert kept.rows.tolist() == sorted(kept.rows.tolist())
    found: list[list[int]] = [[] for _ in range(num_rows)]
    for row, token in zip(kept.rows.tolist(), kept.tokens.tolist(), strict=True):
        found[row].append(token)
    assert all(len(set(ids)) == len(ids) for ids in found)
    return [set(ids) for ids in found]


@given(st.lists(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=30), max_size=12))
def test_any_sets_come_back(sets: list[set[int]]) -> None:
    targets = [random.Random(len(each)).choice(sorted(each)) for each in sets]
    packed = [pack_kept_set(target, list(each)) for target, each in zip(targets, sets, strict=True)]
    assert by_row(unpack_kept_sets(packed, np.array(targets, np.int64)), len(sets)) == sets


def test_equal_tokens_share_a_prediction_unless_their_kept_sets_differ() -> None:
    sequences = [
        sequence("0-0", [5, 6], [[5, 7], [6]]),
        sequence("0-1", [5, 6], [[5, 7], [6, 8]]),
        sequence("0-2", [5, 9], [[5, 7], [9, 3]]),
    ]
    micro = make_micro_batch(sequences, 0, columns=COLUMNS)
    assert micro.copies.tolist() == [0, 1, 0, 2, 0, 3]
    assert micro.targets[micro.distinct].tolist() == [5, 6, 6, 9]
    assert by_row(micro.terms[KEPT_SETS], 4) == [{5, 7}, {6}, {6, 8}, {3, 9}]
    # As without kept sets: where the same past predicts the same token.
    plain = make_micro_batch([without_column(each, KEPT_SETS) for each in sequences], 0, columns=COLUMNS)
    assert not plain.terms
    assert plain.predicting[plain.distinct[plain.copies]].equal(
        micro.predicting[micro.distinct[micro.copies]]
    )


def test_parts_of_kept_sets_are_those_of_their_rows_and_columns() -> None:
    kept = KeptSets.of(torch.tensor([0, 0, 2, 2, 3]), torch.tensor([1, 8, 8, 9, 4]), 4)
    assert by_row(kept.of_rows(torch.tensor([2, 3]), 4), 2) == [{8, 9}, {4}]
    assert by_row(kept.of_columns(8, 1), 4) == [{0}, set(), {0}, set()]
    rows, tokens = kept.places(slice(1, 3))
    assert (rows.tolist(), tokens.tolist()) == ([1, 1], [8, 9])


def test_a_token_without_its_kept_set_is_refused() -> None:
    broken = with_column(sequence("0-0", [5, 6], [[5], [6]]), KEPT_SETS, b"\0")
    with pytest.raises(ValueError, match="shorter"):
        make_micro_batch([broken], 0, columns=COLUMNS)
