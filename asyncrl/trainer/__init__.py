"""Megatron-core training: batches, model, step, publish, checkpoints. Imports torch."""

import sys

# Packages of servers that Megatron-core 0.16.1 imports where they are installed and that raise more than the
# ImportError it expects: deep_ep asserts a CUDA toolkit, flashinfer warns, flash_mla loads libraries. None of
# them trains anything here.
for _name in ("deep_ep", "flashinfer", "flash_mla", "torch_memory_saver"):
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]
