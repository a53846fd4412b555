"""What processes on a CPU keep in memory."""

import os
import subprocess
import sys

import pytest

from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Trainer
from asyncrl.serving.engine.environment import engine_environment
from asyncrl.system.machine import KERNEL_CACHES, bfloat16_flag

MULTIPLY = """
import psutil, torch

torch.set_num_threads(1)
weights = [torch.randn(576, n).bfloat16() for n in (576, 960, 3072)]
for tokens in range(1, 301):
    for weight in weights:
        torch.randn(tokens, 576).bfloat16() @ weight
    if tokens in (100, 300):
        print(psutil.Process().memory_info().rss >> 20)
"""


def test_trainers_and_servers_on_a_cpu_keep_few_kernels():
    for found in (rank_environment(Trainer(), 0, port=0), engine_environment(threads=1, has_gpu=False)):
        assert KERNEL_CACHES.items() <= found.items()


@pytest.mark.skipif(bfloat16_flag() is None, reason="this CPU has no kernels of bfloat16")
def test_each_new_number_of_tokens_takes_no_more_memory():
    def growth(environment: dict[str, str]) -> int:
        said = subprocess.run(
            [sys.executable, "-c", MULTIPLY],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        before, after = map(int, said.stdout.split())
        return after - before

    assert growth(KERNEL_CACHES) < 0.5 * growth({})
