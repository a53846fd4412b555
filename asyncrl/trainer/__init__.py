"""Megatron-core training: batches, model, step, publish, checkpoints. Imports torch."""

import importlib.util
import sys
import types

# Packages of servers that Megatron-core 0.16.1 imports where they are installed and that raise more than the
# ImportError it expects: deep_ep asserts a CUDA toolkit, flashinfer warns, flash_mla loads libraries. None of
# them trains anything here.
for _name in ("deep_ep", "flashinfer", "flash_mla", "torch_memory_saver"):
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]

# Megatron-core 0.19 imports Triton kernels of moe_paged_stash, which no recipe turns on, on every machine.
# CPU builds of torch bring no Triton.
if importlib.util.find_spec("triton") is None:
    _kernels = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")
    vars(_kernels).update(GLOBAL_BLOCK_SIZE=1024, paged_stash_copy_kernel=None, paged_stash_pop_kernel=None)
    sys.modules.setdefault(_kernels.__name__, _kernels)
