"""A surrogate to copy: PPO's objective with a smooth clip. In the recipe:

surrogate: {name: "./soft_clip.py:soft_clip", options: {high: 0.28}}
"""

import torch

from asyncrl.algorithms.inputs import bounded_ratio


def soft_clip(inputs, options):
    """-A high tanh((r - 1) / high), [T] -> [T]: the slope is -A at r = 1 and falls to 0 far away."""
    ratio = bounded_ratio(inputs.current, inputs.proximal)
    return -inputs.advantages * options.high * torch.tanh((ratio - 1) / options.high)
