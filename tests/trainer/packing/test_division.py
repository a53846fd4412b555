"""Which sequences share a micro-batch and a rank: all of them once, within the budget, with equal work."""

import dataclasses

import numpy as np
import pytest
from fakes.models import random_batch
from fakes.sequences import sequence
from fakes.shapes import tiny_shape

from asyncrl.model.shape import ModelShape
from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.batch import make_micro_batch
from asyncrl.trainer.packing.division import make_bundles, plan_micro_batches


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 20, 60, 10_000])
def test_every_sequence_is_planned_once_and_within_the_budget(budget: int, num_ranks: int):
    sequences = random_batch(1, num_groups=7, group_size=5, longest=30).sequences
    plan = plan_micro_batches(sequences, budget_tokens=budget, num_ranks=num_ranks)
    assert len({len(micro_batches) for micro_batches in plan}) == 1
    planned = [chosen for micro_batches in plan for chosen in micro_batches]
    assert sorted(i for chosen in planned for i in chosen) == list(range(35))
    for chosen in planned:
        size = len(make_micro_batch([sequences[i] for i in chosen], 1).tokens)
        assert size <= budget or len(chosen) == 1


def test_a_sequence_longer_than_the_budget_is_whole_and_alone():
    long, short = sequence([1] * 50, [2] * 51), sequence([3], [4, 5])
    plan = plan_micro_batches([short, long, short], budget_tokens=64, num_ranks=1)
    assert sorted(map(sorted, plan[0])) == [[0, 2], [1]]
    assert len(make_micro_batch([long], 0).tokens) == 100


def test_a_bundle_larger_than_the_budget_is_split_and_repeats_its_prompt():
    # prompt 10 and 4 inputs each: 10 + 4 + 4 fit into 20, a third does not
    bundles = make_bundles([sequence([1] * 10, [first] * 5) for first in (2, 3, 4)], max_tokens=20)
    assert [(bundle.indices, bundle.num_tokens) for bundle in bundles] == [((0, 1), 18), ((2,), 14)]


def test_what_responses_share_is_counted_once():
    responses = [[2, 3, 4, 5], [2, 9], [2, 3, 4, 6], [2, 3, 4, 5]]
    bundles = make_bundles([sequence([1] * 10, response) for response in responses], max_tokens=100)
    # inputs 2, 3, 4 of the first, third and fourth, of which the second has the 2
    assert [(bundle.indices, bundle.num_tokens) for bundle in bundles] == [((0, 3, 2, 1), 13)]


def test_the_plan_depends_on_the_batch_alone():
    sequences = random_batch(4).sequences
    plans = [plan_micro_batches(sequences, budget_tokens=40, num_ranks=2) for _ in range(2)]
    assert plans[0] == plans[1]
    assert np.unique([i for rank in plans[0] for chosen in rank for i in chosen]).size == len(sequences)


def test_interleaved_stages_get_micro_batches_in_turns():
    batch = random_batch(0, num_groups=5, group_size=2)
    for multiple in (1, 2, 3):
        plan = plan_micro_batches(batch.sequences, budget_tokens=40, num_ranks=2, multiple=multiple)
        assert [len(rank) % multiple for rank in plan] == [0, 0]
        assert sorted(i for rank in plan for micro in rank for i in micro) == list(range(10))


SHAPE = dataclasses.replace(tiny_shape(), hidden_size=256, ffn_size=768, num_heads=16, head_size=64)
"""Behind 250 others, attention is three tenths of a token's work."""


def drawn(seed: int, *, prompt: int, mean: int, spread: float) -> list[ScoredSequence]:
    """64 groups of 8 responses of log-normal lengths."""
    source = np.random.default_rng(seed)
    lengths = (
        np.minimum(source.lognormal(np.log(mean) - spread**2 / 2, spread, (64, 8)), 5 * mean).astype(int) + 1
    )
    tokens = iter(range(10, 10**9))
    sequences = []
    for group, row in enumerate(lengths.tolist()):
        shared = [next(tokens) % 997 for _ in range(prompt - 1)] + [group]
        sequences += [sequence(shared, [next(tokens) for _ in range(length)]) for length in row]
    return [dataclasses.replace(one, sequence_id=str(i)) for i, one in enumerate(sequences)]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("spread", [0.6, 0.8])
def test_ranks_do_the_same_work_in_full_micro_batches(spread: float, seed: int) -> None:
    sequences = drawn(seed, prompt=20, mean=200, spread=spread)
    num_ranks, size = 32, 64 * 20 + sum(len(one.response_tokens) - 1 for one in sequences)
    # As many tokens as 94% of one micro-batch per rank.
    budget = int(size / num_ranks / 0.94)
    plan = plan_micro_batches(sequences, budget_tokens=budget, num_ranks=num_ranks, shape=SHAPE)
    packs = [[make_micro_batch([sequences[i] for i in chosen], 0) for chosen in rank] for rank in plan]
    work = [sum(micro.flops(SHAPE) for micro in rank) for rank in packs]
    assert max(work) <= 1.05 * sum(work) / num_ranks
    tokens = [len(micro.tokens) for rank in packs for micro in rank]
    assert max(tokens) <= budget and sum(tokens) >= 0.93 * budget * len(tokens)
    # Prompts that are computed again are little of it.
    assert sum(tokens) <= 1.05 * size


def test_a_long_prompt_is_not_computed_again_for_the_sake_of_equal_ranks() -> None:
    groups = [[sequence([n] * 400, [n, k, 5]) for k in range(4)] for n in range(1, 9)]
    sequences = [one for group in groups for one in group]
    sequences = [dataclasses.replace(one, sequence_id=str(i)) for i, one in enumerate(sequences)]
    plan = plan_micro_batches(sequences, budget_tokens=1000, num_ranks=4, shape=SHAPE)
    assert sorted(len({i // 4 for i in chosen}) for rank in plan for chosen in rank) == [2, 2, 2, 2]


def test_a_long_response_outweighs_as_many_tokens_of_short_ones() -> None:
    long, *short = [sequence([1], [2] * 801), *(sequence([3 + n], [9] * 101) for n in range(10))]
    named = [dataclasses.replace(one, sequence_id=str(i)) for i, one in enumerate([long, *short])]

    def sizes(shape: ModelShape | None) -> list[int]:
        plan = plan_micro_batches(named, budget_tokens=2000, num_ranks=2, shape=shape)
        return sorted(len(chosen) for rank in plan for chosen in rank)

    # 801 tokens and 1,010; a token of the long one looks at 400 others, one of a short one at 50.
    assert sizes(SHAPE) == [1, 10] and sizes(None) == [2, 9]
