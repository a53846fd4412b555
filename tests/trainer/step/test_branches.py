"""Turns in branches, each after a context that was rendered for it: their loss is that of each turn alone."""

import dataclasses
from pathlib import Path

import pytest
import torch
from fakes.learners import make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.records import make_score, make_task
from torch import Tensor

from asyncrl.journal.packing import sequences_of
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, Observed, ScoredSequence, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import MicroBatch, rank_micro_batches
from asyncrl.trainer.step.batch_values import whitened
from asyncrl.trainer.step.part import MiniBatch

PROMPT = (5, 6, 7)
THOUGHT, GUESS, TOLD, OTHER = [11, 12, 13, 14], [21, 22, 2], [31, 32], [23, 24, 2]


def segment(tokens: list[int]) -> Segment:
    return Segment(1, list(tokens), [-1.5] * len(tokens))


def rendered(name: str, last: list[int]) -> Trajectory:
    """Three turns that think: the template leaves the thinking out of what follows, and the last turn ends
    without any, so that a fourth continues its branch."""
    first = Trajectory(name, PROMPT, [segment(THOUGHT + GUESS), Observed([], "{}")])
    context = (*PROMPT, *GUESS, *TOLD)
    second = Trajectory(f"{name}.1", context, [segment(THOUGHT + OTHER), Observed([], "{}")])
    third = Trajectory(
        f"{name}.2", (*context, *OTHER, *TOLD), [segment(GUESS), Observed(TOLD), segment(last)]
    )
    first.branches = [second, third]
    return first


def scored(trajectory: Trajectory, advantage: float) -> list[ScoredSequence]:
    name = trajectory.trajectory_id
    return sequences_of(
        Group(0, make_task(), 0, [trajectory], scores={name: make_score()}, advantages={name: advantage})
    )


def turns_alone(sequences: list[ScoredSequence]) -> list[list[ScoredSequence]]:
    """By trajectory, each turn after all tokens before it."""
    found: dict[str, list[ScoredSequence]] = {}
    for sequence in sequences:
        tokens, start = [*sequence.prompt_tokens, *sequence.response_tokens], 0
        for first, end in [*sequence.observed, (len(sequence.response_tokens),) * 2]:
            before = len(sequence.prompt_tokens) + start
            turn = dataclasses.replace(
                sequence,
                prompt_tokens=tokens[:before],
                response_tokens=sequence.response_tokens[start:first],
                observed=[],
            )
            found.setdefault(sequence.sequence_id.partition(".")[0], []).append(turn)
            start = end
    return list(found.values())


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("budget", [8192, 20])
def test_the_gradient_of_branches_is_that_of_each_turn_alone_after_its_context(
    folder: Path, reduction: str, budget: int
) -> None:
    sequences = [*scored(rendered("0-0", THOUGHT), 1.5), *scored(rendered("0-1", OTHER), -0.5)]
    assert len(sequences) == 6
    algorithm = {"surrogate": "reinforce", "importance_weight": "none", "reduction": reduction}
    learner = make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
    micro_batches = rank_micro_batches(Batch(1, 1.0, sequences), budget_tokens=budget, rank=0, num_ranks=1)
    metrics = learner.accumulate(MiniBatch(micro_batches, 1.0))
    got: dict[str, Tensor] = dict(export_weights(learner.model, lambda p: p.main_grad.clone()))
    model = reference_model(folder)
    losses = [
        torch.cat([-turn.advantage * reference_logprobs(model, turn, 1.0) for turn in turns])
        for turns in turns_alone(sequences)
    ]
    assert [len(each) for each in losses] == [21, 20]
    wanted = (
        torch.cat(losses).mean()
        if reduction == "token_mean"
        else torch.stack([each.mean() for each in losses]).mean()
    )
    wanted.backward()
    assert metrics["loss"] == pytest.approx(wanted.item(), rel=1e-4)
    for name, parameter in model.named_parameters():
        worst = (got[name] - parameter.grad).abs().max() / parameter.grad.abs().max()
        assert worst < 1e-4, name


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
