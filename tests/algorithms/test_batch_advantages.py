"""Advantages that need the whole batch, by hand."""

import dataclasses

import pytest
from fakes.models import random_batch

from asyncrl.algorithms.advantages import ADVANTAGES, STD_EPSILON
from asyncrl.algorithms.batch_advantages import finish_batch
from asyncrl.recipe.algorithm_terms import WHITENED_ADVANTAGES, Kl
from asyncrl.recipe.sections.algorithm import Algorithm
from asyncrl.records import Batch, ScoredSequence

BATCH_STD = Algorithm(advantage="dr_grpo", divides_by_batch_std=True)


def make_sequence(size: int, *, advantage: float, **changes: object) -> ScoredSequence:
    plain = ScoredSequence("s", [1], [1] * size, [-1.0] * size, [0] * size, [False] * size, advantage, 0.0)
    return dataclasses.replace(plain, **changes)


def test_tokens_that_the_loss_leaves_out_are_not_in_the_mean_that_is_taken_off():
    # Counted: 1 token of advantage 1 (two of its three are too stale, or have no log-prob), 3 of 0:
    # mean 1/4, variance 1/4 x 9/16 + 3/4 x 1/16 = 3/16
    sequences = [
        make_sequence(
            3, advantage=1.0, token_versions=[1, 2, 2], behavior_logprobs=[-1.0, -1.0, float("nan")]
        ),
        make_sequence(3, advantage=0.0, token_versions=[2, 3, 4]),
    ]
    batch = finish_batch(Batch(4, 1.0, sequences), Algorithm(advantage="reinforce_pp"), mask_staleness=2)
    assert [s.advantage for s in batch.sequences] == pytest.approx(
        [0.75 / 0.1875**0.5, -0.25 / 0.1875**0.5], rel=1e-4
    )


def test_with_kl_in_the_reward_the_trainer_whitens_after_it_took_the_kl_off():
    batch = random_batch(0)
    with_kl = Algorithm(advantage="reinforce_pp", kl={"coefficient": 0.1, "place": "reward"})
    assert finish_batch(batch, with_kl) is batch
    assert finish_batch(batch, with_kl.model_copy(update={"kl": Kl(coefficient=0.1)})) is not batch


@pytest.mark.parametrize("name", WHITENED_ADVANTAGES)
def test_a_whitened_batch_has_mean_0_and_std_1_over_its_tokens(name: str):
    batch = finish_batch(random_batch(0), Algorithm(advantage=name))
    tokens = [s.advantage for s in batch.sequences for _ in s.response_tokens]
    mean = sum(tokens) / len(tokens)
    assert mean == pytest.approx(0.0, abs=1e-9)
    assert sum((x - mean) ** 2 for x in tokens) / len(tokens) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("name", sorted(ADVANTAGES.keys() - {*WHITENED_ADVANTAGES, "batch_mean"}))
def test_other_batches_stay_as_they_are(name: str):
    batch = random_batch(0)
    assert finish_batch(batch, Algorithm(advantage=name)) is batch


def test_the_mean_of_the_batch_is_over_responses_with_a_token_in_the_loss():
    # (1 + 0 + 0.5) / 3 = 0.5, whatever their lengths and though the first has branches; the last, stale as a
    # whole, is not counted.
    rewards = [("a", 1.0, 5), ("a.1", 1.0, 2), ("b", 0.0, 1), ("c", 0.5, 3)]
    sequences = [make_sequence(size, advantage=reward, sequence_id=name) for name, reward, size in rewards]
    stale = make_sequence(2, advantage=1.0, sequence_id="d", token_versions=[-9, -9])
    batch = finish_batch(
        Batch(0, 1.0, [*sequences, stale]), Algorithm(advantage="batch_mean"), mask_staleness=2
    )
    assert [s.advantage for s in batch.sequences] == pytest.approx([0.5, 0.5, -0.5, 0.0, 0.5])
    equal = Batch(0, 1.0, [make_sequence(2, advantage=1.0) for _ in range(3)])
    assert {s.advantage for s in finish_batch(equal, Algorithm(advantage="batch_mean")).sequences} == {0.0}


def test_an_empty_batch_is_not_whitened():
    batch = Batch(0, 1.0, [])
    assert finish_batch(batch, Algorithm(advantage="reinforce_pp")) is batch


@pytest.mark.parametrize("name", WHITENED_ADVANTAGES)
def test_a_batch_whose_values_are_one_rounding_apart_is_whitened_to_nothing(name: str):
    sequences = [make_sequence(2, advantage=1.0), make_sequence(3, advantage=0.99999)]
    algorithm = Algorithm(advantage=name)
    batch = finish_batch(Batch(0, 1.0, sequences), algorithm)
    assert [s.advantage for s in batch.sequences] == [0.0, 0.0]
    exact = finish_batch(Batch(0, 1.0, sequences), Algorithm(advantage=name, least_reward_spread=0.0))
    assert max(s.advantage for s in exact.sequences) > 0.5


def test_a_batch_is_whitened_over_the_tokens_of_each_turn():
    turns = make_sequence(4, advantage=1.0, turn_advantages=[(1, 1.0), (3, 2.0)], token_versions=[0, 0, 4, 4])
    other = make_sequence(2, advantage=0.0, token_versions=[4, 4])
    algorithm = Algorithm(advantage="reinforce_pp")
    # One token of 1 and three of 2, two of 0: mean 7/6, mean square 13/6.
    batch = finish_batch(Batch(4, 1.0, [turns, other]), algorithm)
    std = (13 / 6 - (7 / 6) ** 2) ** 0.5
    wanted = [(x - 7 / 6) / (std + STD_EPSILON) for x in (1.0, 2.0, 0.0)]
    assert batch.sequences[0].turn_advantages == [
        (1, pytest.approx(wanted[0])),
        (3, pytest.approx(wanted[1])),
    ]
    assert [s.advantage for s in batch.sequences] == pytest.approx([wanted[0], wanted[2]])
    # Without the stale ones: two tokens of 2, two of 0.
    batch = finish_batch(Batch(4, 1.0, [turns, other]), algorithm, mask_staleness=2)
    assert batch.sequences[0].turn_advantages == [(1, pytest.approx(0.0)), (3, pytest.approx(1.0, rel=1e-4))]


def test_the_std_of_the_batch_is_over_responses_and_no_mean_is_subtracted():
    # 1, -0.5, -0.5 and 2, of 1, 2, 3 and 4 tokens: mean 0.5, squared deviations 0.25, 1, 1, 2.25, variance
    # 1.125. By tokens it would be another.
    sequences = [
        make_sequence(i + 1, advantage=a, sequence_id=f"{i:08d}-00")
        for i, a in enumerate((1.0, -0.5, -0.5, 2.0))
    ]
    batch = finish_batch(Batch(0, 1.0, sequences), BATCH_STD)
    std = 1.125**0.5
    assert [s.advantage for s in batch.sequences] == pytest.approx(
        [1 / std, -0.5 / std, -0.5 / std, 2 / std], rel=1e-5
    )


def test_a_group_without_a_signal_stays_at_zero_under_the_std_of_the_batch_but_not_when_whitened():
    sequences = [
        make_sequence(i + 1, advantage=a, sequence_id=f"{i:08d}-00")
        for i, a in enumerate((0.75, -0.25, -0.25, -0.25, 0.0, 0.0))
    ]
    batch = Batch(0, 1.0, sequences)
    assert [s.advantage for s in finish_batch(batch, BATCH_STD).sequences[4:]] == [0.0, 0.0]
    whitened = finish_batch(batch, Algorithm(advantage="reinforce_pp_baseline"))
    assert all(s.advantage for s in whitened.sequences[4:])


def test_the_branches_and_turns_of_a_trajectory_are_one_response_of_the_batch():
    # One response of three tokens, 1, 1 and 4 (mean 2), beside one of -2: mean 0, mean square
    # (1/3 + 1/3 + 16/3 + 4) / 2 = 5.
    sequences = [
        make_sequence(2, advantage=1.0, sequence_id="00000000-00"),
        make_sequence(1, advantage=4.0, sequence_id="00000000-00.1"),
        make_sequence(9, advantage=-2.0, sequence_id="00000000-01"),
    ]
    found = finish_batch(Batch(0, 1.0, sequences), BATCH_STD).sequences
    assert [s.advantage for s in found] == pytest.approx([x / 5**0.5 for x in (1, 4, -2)], rel=1e-5)
    in_turns = make_sequence(
        3, advantage=1.0, turn_advantages=[(2, 1.0), (1, 4.0)], sequence_id="00000000-00"
    )
    found = finish_batch(Batch(0, 1.0, [in_turns, sequences[2]]), BATCH_STD).sequences
    assert [x for _, x in found[0].turn_advantages] == pytest.approx([1 / 5**0.5, 4 / 5**0.5], rel=1e-5)


def test_a_response_without_a_token_in_the_loss_is_not_in_the_std_of_the_batch():
    sequences = [
        make_sequence(2, advantage=a, sequence_id=f"{i:08d}-00", token_versions=[v, v])
        for i, (a, v) in enumerate([(1.0, 4), (-1.0, 4), (9.0, 0)])
    ]
    found = finish_batch(Batch(4, 1.0, sequences), BATCH_STD, mask_staleness=2).sequences
    assert [s.advantage for s in found] == pytest.approx([1.0, -1.0, 9.0], rel=1e-5)


def test_a_response_that_was_cut_off_is_masked_and_not_in_the_std_of_the_batch():
    sequences = [
        make_sequence(2, advantage=a, sequence_id=f"{i:08d}-00", finish=finish)
        for i, (a, finish) in enumerate([(1.0, "stop"), (-1.0, "stop"), (9.0, "length")])
    ]
    batch = Batch(0, 1.0, sequences)
    found = finish_batch(batch, BATCH_STD.model_copy(update={"masks_cut_off": True})).sequences
    assert [s.is_masked for s in found] == [False, False, True]
    assert [s.advantage for s in found] == pytest.approx([1.0, -1.0, 9.0], rel=1e-5)
    assert not any(s.is_masked for s in finish_batch(batch, BATCH_STD).sequences)


def test_a_batch_of_equal_advantages_is_not_divided_by_a_std_of_zero():
    sequences = [make_sequence(2, advantage=0.5, sequence_id=f"{i:08d}-00") for i in range(3)]
    found = finish_batch(Batch(0, 1.0, sequences), Algorithm(advantage="remax", divides_by_batch_std=True))
    assert [s.advantage for s in found.sequences] == [0.0, 0.0, 0.0]
