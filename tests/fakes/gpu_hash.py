"""SGLang's hash of tensors on CUDA, on a CPU: its own Python file, with NumPy for its two Triton kernels."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

NAME = "sglang.kernels.ops.memory.gpu_tensor_hash"


class OnDevice(torch.Tensor):
    """A tensor that says that it is on CUDA."""

    is_cuda = True  # type: ignore[assignment]


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnDevice)


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Makes it the module that is imported as SGLang's; returns it."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.__dict__.update(jit=_jit, cdiv=lambda a, b: -(-a // b), language=language)
    language.__dict__.update(constexpr=int)
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations is not None
    path = f"{spec.submodule_search_locations[0]}/kernels/ops/memory/gpu_tensor_hash.py"
    file = importlib.util.spec_from_file_location(NAME, path)
    assert file is not None and file.loader is not None
    module = importlib.util.module_from_spec(file)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "triton", triton)
        patch.setitem(sys.modules, "triton.language", language)
        file.loader.exec_module(module)
    package = ModuleType(NAME.rpartition(".")[0])
    package.__dict__["gpu_tensor_hash"] = module
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


def _jit(function: Any = None, **_: Any) -> Any:
    if function is None:
        return _jit
    return {"hash_tiles32_kernel_blocked": _Kernel(_hash), "add_tree_reduce_u64_kernel": _Kernel(_add)}.get(
        function.__name__, function
    )


class _Kernel:
    """Launched over a grid as `kernel[grid](...)`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **named: [self._run(i, *arguments, **named) for i in range(grid[0])]


def _mix(x: Any, first: int, second: int) -> Any:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(first)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(second)
    return x ^ (x >> np.uint32(16))


def _rotated(x: Any, by: int) -> Any:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def _hash(tile: int, words: Any, out: Any, size: int, **named: Any) -> None:
    begin = tile * named["TILE"]
    values = words.as_subclass(torch.Tensor).numpy()[begin : min(size, begin + named["TILE"])]
    places = np.arange(begin, begin + len(values), dtype=np.uint32)
    halves = []
    for multiplier, seed, by in ((named["POS_A"], named["seed1"], 15), (named["POS_B"], named["seed2"], 13)):
        mixed = _mix(
            values ^ ((places * np.uint32(multiplier) + np.uint32(seed)) ^ _rotated(places, by)),
            *(named["FM_C1"], named["FM_C2"]),
        )
        total = np.array([mixed.sum(dtype=np.uint32) ^ np.uint32((size * 4) % 2**32)], dtype=np.uint32)
        halves.append(int(_mix(total, named["FM_C1"], named["FM_C2"])[0]))
    out.as_subclass(torch.Tensor).numpy()[tile] = np.uint64((halves[0] << 32) | halves[1])


def _add(part: int, values: Any, out: Any, size: int, CHUNK: int) -> None:
    held = values.as_subclass(torch.Tensor).numpy()[part * CHUNK : min(size, (part + 1) * CHUNK)]
    out.as_subclass(torch.Tensor).numpy()[part] = held.sum(dtype=np.uint64)
