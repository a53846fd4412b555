import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from fakes.columns import COLUMNS
from fakes.models import random_batch
from fakes.sequences import in_pairs, sequence, with_credits, with_kept_sets, with_observed, with_turns
from fakes.shapes import tiny_shape

from asyncrl.model.flops import token_flops
from asyncrl.records import CREDITS, Batch, ScoredSequence
from asyncrl.trainer.packing.batch import make_micro_batch, rank_micro_batches
from asyncrl.wire.messages import pack_sequences, unpack_sequences


def test_a_shared_prompt_is_packed_once_and_the_last_response_token_never():
    micro = make_micro_batch([sequence([1, 2], [3, 4, 5]), sequence([1, 2], [6]), sequence([7], [8, 9])], 0)
    assert micro.tokens.tolist() == [1, 2, 3, 4, 7, 8]
    assert micro.sequences.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert micro.targets.tolist() == [3, 4, 5, 6, 8, 9]
    # 3 and 6 are both predicted by the prompt's last token at 1, then each by the token before it
    assert micro.predicting.tolist() == [1, 2, 3, 1, 4, 5]
    assert micro.sequence_ids.tolist() == [0, 0, 0, 1, 2, 2]


def test_every_token_carries_its_own_advantage_log_prob_and_lag():
    first = sequence([1], [2, 3], advantage=0.5, behavior_logprobs=[-0.1, math.nan], token_versions=[3, 5])
    micro = make_micro_batch([first, sequence([1], [2], advantage=-2.0, token_versions=[4])], 5)
    assert micro.advantages.tolist() == [0.5, 0.5, -2.0]
    assert micro.lags.tolist() == [2, 0, 1]
    assert micro.behavior[0].item() == pytest.approx(-0.1) and micro.behavior[1].isnan()


def test_only_sampled_tokens_have_a_target_a_log_prob_and_a_lag():
    turns = with_observed(
        sequence([1, 2], [3, 4, 5, 6], token_versions=[2, 0, 0, 5], behavior_logprobs=[-1.0, 0.0, 0.0, -2.0]),
        [(1, 3)],
    )
    micro = make_micro_batch([turns, sequence([7], [8], token_versions=[5])], 5)
    assert micro.targets.tolist() == [3, 6, 8] and micro.sequence_ids.tolist() == [0, 0, 1]
    assert micro.lags.tolist() == [3, 0, 0] and micro.behavior.tolist() == [-1.0, -2.0, -1.0]
    assert micro.tokens[micro.predicting].tolist() == [2, 5, 7]


# Padded ones share no prompt: those that do may be laid out in one block.
@pytest.mark.parametrize("kernel, num_groups, group_size", [("formula", 5, 4), ("sdpa", 20, 1)])
def test_each_sequence_can_be_read_back_from_its_places(kernel: str, num_groups: int, group_size: int):
    sequences = random_batch(3, num_groups=num_groups, group_size=group_size, longest=20).sequences
    micro = make_micro_batch(sequences, 3, kernel=kernel)
    pack, found = micro.sequences, []
    places = pack.places.split([b * length for b, length in pack.rows.buckets])
    for (b, length), bucket in zip(pack.rows.buckets, places, strict=True):
        for row in bucket.view(b, length):
            size = len(torch.unique_consecutive(row))
            found.append((micro.tokens[row[:size]].tolist(), pack.positions[row[:size]].tolist()))
    inputs = {tuple(s.prompt_tokens + s.response_tokens[:-1]) for s in sequences}
    # what begins another sequence has no row of its own
    wanted = [list(a) for a in inputs if not any(a == b[: len(a)] for b in inputs - {a})]
    assert sorted(found) == sorted((tokens, list(range(len(tokens)))) for tokens in wanted)
    assert torch.equal(pack.places[pack.packed], torch.arange(len(micro.tokens)))


def test_ranks_get_about_the_same_number_of_tokens():
    batch = random_batch(2, num_groups=16, group_size=8, longest=30)
    packs = [rank_micro_batches(batch, budget_tokens=8192, rank=rank, num_ranks=2) for rank in range(2)]
    first, second = (sum(len(micro.tokens) for micro in micro_batches) for micro_batches in packs)
    assert abs(first - second) < 0.1 * (first + second)


def test_a_rank_without_sequences_still_takes_part():
    batch = random_batch(0, num_groups=1, group_size=1)
    packs = [rank_micro_batches(batch, budget_tokens=64, rank=rank, num_ranks=2) for rank in range(2)]
    assert [[len(micro.targets) for micro in pack] for pack in packs] == [
        [len(batch.sequences[0].response_tokens)],
        [0],
    ]


def test_sequences_that_teach_come_first_on_every_rank():
    batch = random_batch(0, num_groups=5, num_silent=4)
    packs = [
        rank_micro_batches(
            batch, budget_tokens=30, rank=rank, num_ranks=2, teaches=lambda sequence: bool(sequence.advantage)
        )
        for rank in range(2)
    ]
    first, second = ([micro.teaches for micro in pack] for pack in packs)
    assert first == second == sorted(first, reverse=True)
    micro_batches = [micro for pack in packs for micro in pack]
    assert all(micro.teaches == bool(micro.advantages.any()) for micro in micro_batches if len(micro.targets))
    names = [name for micro in micro_batches for name in micro.names if name]
    assert sorted(names) == sorted(sequence.sequence_id for sequence in batch.sequences)


def test_ranks_take_part_in_a_batch_that_teaches_nothing():
    batch = random_batch(0, num_groups=2, num_silent=2)
    (idle, *rest) = rank_micro_batches(
        batch, budget_tokens=8192, rank=0, num_ranks=1, teaches=lambda sequence: bool(sequence.advantage)
    )
    assert idle.teaches and not len(idle.targets)
    assert [micro.teaches for micro in rest] == [False]


def test_turns_bring_their_advantages_and_credits_lie_at_their_tokens():
    plain = sequence([1], [5, 6], advantage=-1.0)
    turns = with_observed(sequence([1], [2, 3, 0, 4, 5]), [(2, 3)])
    turns = dataclasses.replace(turns, turn_advantages=[(2, 0.5), (2, 0.25)])
    turns = with_credits(turns, (1, 2.0), (3, -1.0))
    micro = make_micro_batch([plain, turns], 0, columns=COLUMNS)
    assert micro.targets.tolist() == [5, 6, 2, 3, 4, 5]
    assert micro.advantages.tolist() == [-1.0, -1.0, 0.5, 0.5, 0.25, 0.25]
    assert micro.columns[CREDITS].tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, -1.0]
    assert not make_micro_batch([plain], 0, columns=COLUMNS).columns
    # No part reads it.
    assert not make_micro_batch([turns], 0).columns


def test_packs_are_padded_to_a_multiple_without_a_token_that_anything_sees():
    # The prompt is the padding's own token, which must not be taken for it.
    sequence = ScoredSequence("", [0, 0], [3, 4, 5], [-1.0] * 3, [0] * 3, [False] * 3, 1.0, 1.0)
    plain, padded = (make_micro_batch([sequence], 0, token_multiple=multiple) for multiple in (1, 6))
    assert plain.tokens.tolist() == [0, 0, 3, 4] and padded.tokens.tolist() == [0, 0, 3, 4, 0, 0]
    assert padded.sequences.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert padded.sequences.rows.buckets in (((1, 4), (1, 2)), ((2, 4),))
    for name in ("predicting", "targets", "behavior", "sequence_ids"):
        assert torch.equal(getattr(padded, name), getattr(plain, name))


def test_attention_and_output_layer_are_counted_where_they_are_computed():
    shape, micro = tiny_shape(), make_micro_batch([sequence([1, 2], [3, 4, 5])], 0)
    # 4 tokens go in (the last is a target only) and look at 1 + 2 + 3 + 4 = 10: two products of 4 heads x 8,
    # two operations each, three times with the backward pass, in 2 layers; 3 of them reach 32 x 40 weights
    attention, output = 10 * 2 * (4 * 8) * 2 * 3 * 2, 3 * 6 * 32 * 40
    assert micro.flops(shape) == 4 * token_flops(shape) + attention + output


def tensors_of(record: object) -> list[torch.Tensor]:
    """All tensors in a micro-batch, and in its parts."""
    values = [getattr(record, field.name) for field in dataclasses.fields(record)]
    values += [own for value in values if isinstance(value, dict) for own in value.values()]
    inner = [tensor for value in values if dataclasses.is_dataclass(value) for tensor in tensors_of(value)]
    return [value for value in values if torch.is_tensor(value)] + inner


@pytest.mark.parametrize("change", [with_turns, with_kept_sets, in_pairs])
def test_a_batch_that_came_over_the_wire_is_packed_as_the_one_that_was_sent(change: Callable[[Batch], Batch]):
    batch = change(random_batch(3, num_groups=6, group_size=4, longest=30))
    arrived = dataclasses.replace(batch, sequences=unpack_sequences(pack_sequences(batch.sequences)))
    for one, other in zip(
        *(
            rank_micro_batches(each, budget_tokens=64, rank=1, num_ranks=2, columns=COLUMNS)
            for each in (batch, arrived)
        ),
        strict=True,
    ):
        assert one.names == other.names and one.lines == other.lines
        pairs = zip(tensors_of(one), tensors_of(other), strict=True)
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
