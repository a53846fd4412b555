"""On-policy distillation: what the teacher adds to the advantage of each token."""

import torch
from torch import Tensor


def teacher_advantages(behavior: Tensor, teacher: Tensor, coefficient: float) -> Tensor:
    """c (ln t - ln mu) of each token, [T] -> [T] float32; 0 where `behavior` is not finite

    ln t is the teacher's log-prob and ln mu that of the policy that sampled, both at the sampling
    temperature: the gradient of -sum_t KL-hat_t, where each token answers for its own term alone (discount
    0). Its mean is -c KL(mu || t), estimated from tokens of mu.
    Source: on-policy distillation, Agarwal et al. 2024 (GKD, arXiv 2306.13649) with reverse KL as a reward,
    Gu et al. 2024 (MiniLLM, arXiv 2306.08543) without its return; "On-Policy Distillation", Thinking Machines
    2025; Qwen3 (arXiv 2505.09388).
    Use: a stronger model with the same tokenizer: a signal at each token, also where no verifier has a word.
    Fails: a teacher has little to say of text that it would never write: far from it, begin with sft. Tokens
    that it finds nearly impossible have advantages of any size: watch grad_norm."""
    found = coefficient * (teacher - behavior)
    return torch.where(behavior.isfinite(), found, 0.0)
