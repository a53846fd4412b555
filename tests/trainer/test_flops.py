import dataclasses

import pytest
import torch
from fakes.shapes import tiny_shape

from asyncrl.records import Sequence
from asyncrl.trainer.batch import make_micro_batch
from asyncrl.trainer.flops import micro_batch_flops, peak_flops, token_flops

SHAPE = tiny_shape()


def test_a_token_costs_six_operations_per_weight_of_its_matrices():
    # per layer: q and o 32 x 32 each, k and v 32 x 16 each, feed-forward 3 x 32 x 48
    assert token_flops(SHAPE) == 6 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)


def test_only_the_chosen_experts_cost_anything():
    experts = dataclasses.replace(SHAPE, num_experts=8, experts_per_token=2, expert_ffn_size=10)
    # router 32 x 8, two networks of 3 x 32 x 10
    assert token_flops(experts) == 6 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 32 * 8 + 2 * 3 * 32 * 10)


def test_attention_and_output_layer_are_counted_where_they_are_computed():
    sequence = Sequence("", [1, 2], [3, 4, 5], [-1.0] * 3, [0] * 3, [False] * 3, 1.0, 1.0)
    micro = make_micro_batch([sequence], 0)
    # 4 tokens go in (the last is a target only) and look at 1 + 2 + 3 + 4 = 10: two products of 4 heads x 8,
    # two operations each, three times with the backward pass, in 2 layers; 3 of them reach 32 x 40 weights
    attention, output = 10 * 2 * (4 * 8) * 2 * 3 * 2, 3 * 6 * 32 * 40
    assert micro_batch_flops(SHAPE, micro) == 4 * token_flops(SHAPE) + attention + output


def test_the_peak_is_the_recipes_or_that_of_a_known_gpu(monkeypatch: pytest.MonkeyPatch):
    assert peak_flops(100.0, torch.float32) == 1e14
    assert peak_flops(None, torch.bfloat16) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert peak_flops(None, torch.bfloat16) == 989e12
    assert peak_flops(None, torch.float32) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert peak_flops(None, torch.bfloat16) is None
