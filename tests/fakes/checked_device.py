"""The device of the tests marked gpu: a GPU, unless `make gpu-check` rehearses them on a CPU."""

import os

import pytest
import torch

DEVICE = torch.device(os.environ.get("ASYNCRL_CHECKED_DEVICE", "cuda"))
is_there = pytest.mark.skipif(
    DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"
)
of_cuda_alone = pytest.mark.skipif(DEVICE.type != "cuda", reason="of CUDA alone")
