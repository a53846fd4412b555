"""How far the policy is from its teacher: by the tokens that it sampled, and by those that the teacher finds
likeliest there.

Shapes: T response tokens of one micro-batch, C those of them that count.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.trainer.packing.batch import MicroBatch

NUM_SUMS = 5
"""Tokens that count and have a log-prob of the teacher; ln mu - ln t of them; those of them with its
likeliest tokens; the forward KL over these, and their probability."""


def token_sums(inputs: LossInputs, micro: MicroBatch, places: Tensor) -> Tensor:
    """[NUM_SUMS] float64; 0 without a teacher. `places` [C] into T."""
    found = inputs.proximal.new_zeros(NUM_SUMS, dtype=torch.float64)
    if micro.teacher is None:
        return found
    teacher = micro.teacher.to(places.device)[places].double()
    gaps = inputs.behavior[places].double() - teacher
    found[:2] = torch.stack([torch.ones_like(gaps), gaps]).sum(1)
    if micro.top is not None and inputs.forward_kl is not None:
        masses = micro.top.masses()[micro.copies][places].double()
        kl = inputs.forward_kl.detach()[places].double()
        found[2:] = torch.stack([torch.ones_like(kl), kl, masses]).sum(1)
    return found


def metrics(sums: Tensor) -> dict[str, float]:
    """Columns of a step from [NUM_SUMS] over all micro-batches and ranks; none without a teacher.

    teacher_kl estimates KL(mu || t), the reverse KL per token, by its mean of ln mu - ln t over tokens of mu
    (k1): unbiased, and negative now and then where the two are close. teacher_forward_kl is the mean of
    `top_k_forward_kl`, teacher_top_mass that of the probability which the teacher's k tokens have of its."""
    count, total, num_top, forward, mass = sums.tolist()
    found = {"teacher_kl": total / count} if count else {}
    return found | (
        {"teacher_forward_kl": forward / num_top, "teacher_top_mass": mass / num_top} if num_top else {}
    )
