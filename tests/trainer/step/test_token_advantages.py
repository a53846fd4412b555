"""Advantages per token that need the whole batch: what whitening makes of values that hardly differ."""

import pytest
import torch
from fakes.models import random_batch
from torch import Tensor

from asyncrl.recipe import Algorithm
from asyncrl.trainer.packing.batch import MicroBatch, rank_micro_batches
from asyncrl.trainer.step.batch_values import whitened

DEFAULT = Algorithm(advantage="gae")


def part_of(values: float) -> tuple[list[MicroBatch], list[Tensor]]:
    """Micro-batches whose tokens have the advantage 1, but those of lag 0 `values` more."""
    micro_batches = rank_micro_batches(random_batch(3), budget_tokens=40, rank=0, num_ranks=1)
    assert len(micro_batches) > 1
    return micro_batches, [1.0 + values * (micro.lags == 0) for micro in micro_batches]


@pytest.mark.parametrize(("difference", "is_flat"), [(0.0, True), (1e-5, True), (9e-4, True), (0.01, False)])
def test_tokens_one_rounding_apart_are_whitened_to_nothing(difference: float, is_flat: bool) -> None:
    micro_batches, advantages = part_of(difference)
    (found,) = whitened([advantages], [micro_batches], DEFAULT, mask_staleness=None)
    values = torch.cat(found)
    if is_flat:
        assert not values.any()
    else:
        assert (values.mean().item(), values.std(correction=0).item()) == pytest.approx((0.0, 1.0), abs=1e-3)


def test_the_key_decides_and_tokens_that_no_loss_counts_do_not() -> None:
    micro_batches, advantages = part_of(1e-4)
    exact = DEFAULT.model_copy(update={"least_reward_spread": 0.0})
    (found,) = whitened([advantages], [micro_batches], exact, mask_staleness=None)
    assert torch.cat(found).abs().max() > 0.5
    far = [each + 9.0 * (micro.lags > 0) for micro, each in zip(micro_batches, advantages, strict=True)]
    (found,) = whitened([far], [micro_batches], DEFAULT, mask_staleness=0)
    assert not torch.cat(found).any()


def test_no_token_is_left_as_it_is() -> None:
    micro_batches, advantages = part_of(1.0)
    assert whitened([advantages], [micro_batches], DEFAULT, mask_staleness=-1) == [advantages]
