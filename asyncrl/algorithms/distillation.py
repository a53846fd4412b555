"""On-policy distillation: what the teacher adds to the advantage of each token, and its forward KL."""

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


def top_k_forward_kl(teacher: Tensor, mean: Tensor) -> Tensor:
    """sum_v t(v) (ln t(v) - ln p(v)) over the teacher's k likeliest tokens, [T, k], [T] -> [T], with the
    gradient of `mean`

    `teacher` are their ln t, and `mean` is sum_v t(v) ln p(v), both of distributions over all tokens at the
    sampling temperature. What the teacher gives to other tokens is left out, and nothing is renormalized, as
    in verl's forward_kl_topk: with M the sum of these t(v), the gradient in the logits is M p(v) - t(v) at
    the k tokens and M p(v) at all others, so that it is least, M ln M <= 0, at p(v) = t(v) / M.
    Source: GKD, Agarwal et al. 2024 (arXiv 2306.13649), on the student's own text; its top k as in verl.
    Use: the whole of a teacher's opinion in place of one sampled token's: less noise, and mass where the
    student has none. Stale tokens need no weight: it is asked of the policy itself, where the text is.
    Fails: k of 1 knows no doubt of the teacher; a small M pushes away what the teacher would write: watch
    teacher_top_mass."""
    entropies: Tensor = torch.special.entr(teacher.exp()).sum(-1)
    return -entropies - mean
