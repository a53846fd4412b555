"""Batches whose mismatch and staleness are put in on purpose, to see whether the diagnostics find them.

A policy is a table of logits per position. The trainer's is `table`; a server that serves version v - lag has
drifted from it by `drift` per version, and every server adds noise of its own, the mismatch. The true KL of
each is known from the tables. Shapes: S positions, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import make_loss
from asyncrl.recipe import Algorithm
from asyncrl.trainer.packing.attention import describe_pack
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.step.diagnostics import Tally, micro_batch_sums

VOCABULARY = 50


@dataclass(frozen=True)
class Injection:
    noise: float
    """Standard deviation of the logits' difference between the engines."""
    drift: float
    """The same between one policy version and the next."""
    lags: tuple[int, ...] = (0, 1, 2, 4, 8)
    tokens_per_lag: int = 20_000
    seed: int = 0


@dataclass(frozen=True)
class Recovered:
    metrics: dict[str, float]
    true_kl: dict[int, float]
    """Lag -> mean KL(mu || pi) over the positions, from the tables."""
    sequence_length: int


def recover(injection: Injection, *, sequence_length: int = 100) -> Recovered:
    """What the diagnostics say of sampled tokens, and what was put in."""
    generator = torch.Generator().manual_seed(injection.seed)
    table = 2 * torch.randn(sequence_length, VOCABULARY, generator=generator)
    steps = torch.randn(max(injection.lags, default=0), sequence_length, VOCABULARY, generator=generator)
    mismatch = injection.noise * torch.randn(sequence_length, VOCABULARY, generator=generator)
    trainer = torch.log_softmax(table, -1)
    tally, true_kl = Tally(), {}
    for lag in injection.lags:
        server = torch.log_softmax(table + injection.drift * steps[:lag].sum(0) + mismatch, -1)
        true_kl[lag] = (server.exp() * (server - trainer)).sum(-1).mean().item()
        num_sequences = injection.tokens_per_lag // sequence_length
        tokens = torch.multinomial(server.exp(), num_sequences, replacement=True, generator=generator).T
        places = torch.arange(sequence_length).expand_as(tokens)
        tally.add(
            *_sums(trainer[places, tokens].flatten(), server[places, tokens].flatten(), num_sequences, lag)
        )
    return Recovered(tally.metrics(), true_kl, sequence_length)


def _sums(proximal: Tensor, behavior: Tensor, num_sequences: int, lag: int) -> tuple[Tensor, Tensor]:
    size = len(proximal)
    algorithm = Algorithm()
    inputs = LossInputs(
        current=proximal,
        proximal=proximal,
        behavior=behavior,
        advantages=torch.ones(size),
        mask=torch.ones(size, dtype=torch.bool),
        sequence_ids=torch.arange(num_sequences).repeat_interleave(size // num_sequences),
        entropies=torch.zeros(size),
    )
    micro = MicroBatch(
        tokens=torch.zeros(size, dtype=torch.long),
        sequences=describe_pack([np.arange(size)], np.arange(size), kernel="sdpa"),
        predicting=torch.arange(size),
        targets=torch.zeros(size, dtype=torch.long),
        distinct=torch.arange(size),
        copies=torch.arange(size),
        behavior=behavior,
        advantages=inputs.advantages,
        lags=torch.full((size,), lag),
        are_continued=torch.zeros(size, dtype=torch.bool),
        sequence_ids=inputs.sequence_ids,
        line_ids=inputs.sequence_ids,
    )
    parts = make_loss(algorithm, max_new_tokens=size)(inputs)
    return micro_batch_sums(inputs, parts, micro, algorithm=algorithm)
