"""A surrogate to copy: PPO's objective with a smooth clip, named `surrogate: "./soft_clip.py:soft_clip"`."""

import torch

from asyncrl.algorithms.inputs import bounded_ratio


def soft_clip(inputs, algorithm):
    """-A high tanh((r - 1) / high), [T] -> [T]: the slope is -A at r = 1 and falls to 0 far away."""
    ratio = bounded_ratio(inputs.current, inputs.proximal)
    return -inputs.advantages * algorithm.clip_high * torch.tanh((ratio - 1) / algorithm.clip_high)
