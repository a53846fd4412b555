"""Tensors without memory: they keep shape and identity, and views find the memory that comes back."""

import numpy as np
import psutil
import torch

from asyncrl.serving.engine.cpu.processes import allocate, free, give_back

NUM_FLOATS = 2**24
"""64 MiB."""


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def test_a_process_is_smaller_while_its_tensors_are_free_and_everything_finds_them_again() -> None:
    cache = torch.ones(2, NUM_FLOATS // 2)
    keys, values = cache[0], cache[1]
    weight = torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)
    tied = torch.nn.Parameter(weight.data, requires_grad=False)
    before = resident_bytes()
    freed = free([keys, values, weight, tied])
    give_back()
    # What shares memory comes once.
    assert [num_bytes for _, num_bytes in freed] == [4 * NUM_FLOATS, 64]
    assert before - resident_bytes() > 0.9 * 4 * NUM_FLOATS
    assert values.shape == (NUM_FLOATS // 2,) and weight.untyped_storage().nbytes() == 0
    allocate(freed)
    keys.fill_(2.0)
    values.fill_(3.0)
    assert cache.sum(dim=1).tolist() == [NUM_FLOATS, 1.5 * NUM_FLOATS]
    weight.zero_()
    assert tied.sum().item() == 0.0


def test_weights_in_memory_that_is_not_torchs_are_freed_and_stay_tied() -> None:
    weight = torch.nn.Parameter(torch.from_numpy(np.ones((4, 4), np.float32)), requires_grad=False)
    tied = torch.nn.Parameter(weight.data, requires_grad=False)
    assert not weight.untyped_storage().resizable()
    freed = free([weight, tied])
    assert [num_bytes for _, num_bytes in freed] == [64] and tied.untyped_storage().nbytes() == 0
    allocate(freed)
    weight.fill_(3.0)
    assert tied.shape == (4, 4) and tied.sum().item() == 48.0
