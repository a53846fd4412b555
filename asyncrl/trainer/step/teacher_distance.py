"""How far the policy is from its teacher: by the tokens that it sampled, and by those that the teacher finds
likeliest there.

Shapes: T response tokens of one micro-batch.
"""

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.top_tokens import TopTokens

NUM_SUMS = 5
"""Tokens that count and have a log-prob of the teacher; ln mu - ln t of them; those of them with its
likeliest tokens; the forward KL over these, and their probability."""


def token_sums(inputs: LossInputs, micro: MicroBatch) -> Tensor:
    """[NUM_SUMS] float64 over the tokens that count; 0 without a teacher."""
    found = inputs.proximal.new_zeros(NUM_SUMS, dtype=torch.float64)
    teacher, top = micro.columns.get(TEACHER_LOGPROBS), micro.terms.get(TEACHER_TOP)
    if teacher is None:
        return found
    gaps = inputs.behavior.double() - teacher.to(found.device).double()
    found[:2] = _counted(inputs, torch.ones_like(gaps), gaps)
    if isinstance(top, TopTokens) and inputs.forward_kl is not None:
        masses, kl = top.masses()[micro.copies], inputs.forward_kl.detach()
        found[2:] = _counted(inputs, torch.ones_like(kl), kl, masses)
    return found


def _counted(inputs: LossInputs, *values: Tensor) -> Tensor:
    """[len(values)] float64 sums of [T] each over the tokens that count."""
    return torch.where(inputs.mask, torch.stack(values).double(), 0.0).sum(1)


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
