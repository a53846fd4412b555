"""How far the policy is from its teacher, by the tokens that it sampled.

Shapes: T response tokens of one micro-batch, C those of them that count.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.trainer.packing.batch import MicroBatch

NUM_SUMS = 2
"""Tokens that count and have a log-prob of the teacher; ln mu - ln t of them."""


def token_sums(inputs: LossInputs, micro: MicroBatch, places: Tensor) -> Tensor:
    """[NUM_SUMS] float64; 0 without a teacher. `places` [C] into T."""
    if micro.teacher is None:
        return inputs.proximal.new_zeros(NUM_SUMS, dtype=torch.float64)
    teacher = micro.teacher.to(places.device)[places].double()
    gaps = inputs.behavior[places].double() - teacher
    return torch.stack([torch.ones_like(gaps), gaps]).sum(1)


def metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_SUMS] over all micro-batches and ranks; none without a teacher.

    teacher_kl estimates KL(mu || t), the reverse KL per token, by its mean of ln mu - ln t over tokens of mu
    (k1): unbiased, and negative now and then where the two are close."""
    count, total = sums.tolist()
    return {"teacher_kl": total / count} if count else {}
