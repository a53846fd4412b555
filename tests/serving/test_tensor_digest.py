"""Digests on CUDA, with SGLang's hash on a CPU in its place: equal to SGLang's, and read all at once."""

from collections import Counter
from types import ModuleType

import pytest
import torch
from fakes import gpu_hash
from fakes.gpu_hash import on_device

from asyncrl.serving.tensor_digest import PendingDigests, tensor_digest

WAITS = ("item", "tolist", "cpu")
"""Methods of a tensor that wait for the device."""


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return gpu_hash.install(monkeypatch)


@pytest.fixture
def waits(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was called."""
    counts = Counter[str]()

    def watch(name: str) -> None:
        original = getattr(torch.Tensor, name)

        def counted(tensor: torch.Tensor, *arguments: object) -> object:
            counts[name] += 1
            return original(tensor, *arguments)

        monkeypatch.setattr(torch.Tensor, name, counted)

    for name in WAITS:
        watch(name)
    return counts


def some_tensors() -> dict[str, torch.Tensor]:
    """Sizes of one tile of the hash, of several, of more than one sum adds up, of odd bytes, and of none."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"one": 100, "several": 70_001, "many": 8192 * 1030, "bytes": 1003, "empty": 0}
    return {
        name: on_device(
            torch.randint(0, 255, (size,), generator=generator, dtype=torch.uint8)
            if name == "bytes"
            else torch.arange(size, dtype=torch.float32)
        )
        for name, size in sizes.items()
    }


def test_digests_on_the_device_are_sglangs(sglang: ModuleType):
    for name, tensor in some_tensors().items():
        assert tensor_digest(tensor) == f"{sglang.gpu_tensor_hash(tensor):016x}", name


def test_many_digests_wait_for_the_device_once(sglang: ModuleType, waits: Counter[str]):
    tensors = {str(i): on_device(torch.full((50,), float(i))) for i in range(200)}
    wanted = {name: f"{sglang.gpu_tensor_hash(tensor):016x}" for name, tensor in tensors.items()}
    assert waits == {"item": 200}, "SGLang's own waits for each"
    waits.clear()
    pending = PendingDigests()
    for name, tensor in tensors.items():
        pending.add(name, tensor)
    assert not waits
    assert pending.read() == wanted
    assert waits == {"tolist": 1}
    assert pending.read() == wanted
    assert waits == {"tolist": 1}


def test_a_digest_is_of_the_bytes_at_the_time_and_replaces_an_earlier_one(sglang: ModuleType):
    pending, tensor = PendingDigests(), on_device(torch.zeros(8))
    pending.add("a", tensor)
    pending.add("b", tensor)
    tensor[3] = 1.0
    pending.add("b", tensor)
    found = pending.read()
    assert found["a"] == tensor_digest(on_device(torch.zeros(8))) and found["b"] == tensor_digest(tensor)
    pending.add("a", tensor.as_subclass(torch.Tensor))
    assert pending.read()["a"] == tensor_digest(tensor.as_subclass(torch.Tensor))
