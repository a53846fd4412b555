"""How often the host of a GPU would wait for it in a step: until it has, it queues no more kernels."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.learners import make_learner
from fakes.models import random_batch
from fakes.sequences import with_kept_sets
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asyncrl.records import Batch
from asyncrl.trainer.packing import batch as batch_module
from asyncrl.trainer.packing.batch import MicroBatch, rank_micro_batches
from asyncrl.trainer.step.part import MiniBatch

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "repeat_interleave", "_unique2")


class Waits(TorchDispatchMode):
    """Counts calls that ask a pretended GPU for numbers, or for how many there are.

    Tensors are on it, but for those of `on_host`, what is made of these alone, and what came from `cpu`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._is_counting = False
        self._host: dict[int, Tensor] = {}

    @contextmanager
    def counting(self, is_on: bool) -> Iterator[None]:
        before, self._is_counting = self._is_counting, is_on
        yield
        self._is_counting = before

    def on_host(self, tensor: Tensor) -> Tensor:
        # Held, so that its memory is not given to another one.
        self._host[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def ask(self, name: str, tensor: Tensor) -> None:
        if self._is_counting and tensor.untyped_storage().data_ptr() not in self._host:
            self.found[name] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        by_mask = name == "index" and any(i is not None and i.dtype is torch.bool for i in args[1])
        if by_mask or name in WAITING:
            self.ask(name, tensors[0])
        result = func(*args, **(kwargs or {}))
        # Places that are told as a list are on the host.
        sources = tensors[:1] if name == "index" else tensors
        if sources and all(x.untyped_storage().data_ptr() in self._host for x in sources):
            for each in tree_leaves(result):
                if isinstance(each, Tensor):
                    self.on_host(each)
        return result


def tensors_of(record: object) -> list[Tensor]:
    values = [getattr(record, field.name) for field in dataclasses.fields(record)]
    inner = [tensor for value in values if dataclasses.is_dataclass(value) for tensor in tensors_of(value)]
    return [value for value in values if isinstance(value, Tensor)] + inner


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    found = Waits()
    cpu, tolist, make, new = Tensor.cpu, Tensor.tolist, torch.tensor, Tensor.new_tensor

    def counted_cpu(tensor: Tensor) -> Tensor:
        found.ask("cpu", tensor)
        return found.on_host(cpu(tensor).clone())

    def counted_list(tensor: Tensor) -> Any:
        found.ask("tolist", tensor)
        return tolist(tensor)

    def counted_tensor(*arguments: Any, **options: Any) -> Tensor:
        made = make(*arguments, **options)
        # It goes to the GPU from memory that is not page-locked.
        found.ask("tensor", made)
        return made

    def counted_new(*arguments: Any, **options: Any) -> Tensor:
        found.ask("new_tensor", arguments[0])
        return new(*arguments, **options)

    def moved(micro: MicroBatch, device: torch.device) -> MicroBatch:
        with found.counting(False):
            monkeypatch.setattr(Tensor, "pin_memory", Tensor.clone)
            copies = batch_module._moved(micro, device)
        for tensor in tensors_of(copies):
            found._host.pop(tensor.untyped_storage().data_ptr(), None)
        return copies

    monkeypatch.setattr(Tensor, "cpu", counted_cpu)
    monkeypatch.setattr(Tensor, "tolist", counted_list)
    monkeypatch.setattr(torch, "tensor", counted_tensor)
    monkeypatch.setattr(Tensor, "new_tensor", counted_new)
    monkeypatch.setattr(MicroBatch, "to", moved)
    return found


def of_step(folder: Path, waits: Waits, batch: Batch, **sections: Any) -> tuple[int, Counter[str]]:
    """Micro-batches of a step, and the waits in it."""
    learner = make_learner(folder, trainer={"tokens_per_micro_batch": 30}, **sections)
    learner.step(batch)
    pack, packed = learner.pack, []

    def packing(*arguments: Any) -> list[list[MicroBatch]]:
        with waits.counting(False):
            found = pack(*arguments)
        packed.extend(micro for micros in found for micro in micros)
        for micro in packed:
            for tensor in tensors_of(micro):
                waits.on_host(tensor)
        return found

    learner.pack = packing
    with waits, waits.counting(True):
        learner.step(batch)
    return len(packed), waits.found


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"reduction": "dr_grpo_constant", "entropy_bonus": {"coefficient": 0.01}},
        {"reduction": "sequence_mean", "surrogate": "gspo", "importance_weight": "sequence_truncated"},
    ],
)
def test_a_step_waits_twice_however_many_micro_batches_it_has(
    algorithm: dict[str, Any], folder: Path, waits: Waits
) -> None:
    num_micro_batches, found = of_step(folder, waits, random_batch(1), algorithm=algorithm)
    assert num_micro_batches > 3
    # For the sums of the step, which say whether there is anything to learn, and for the gradient's norm.
    assert found == {"cpu": 1, "_local_scalar_dense": 1}


def test_nor_do_sets_of_tokens_that_servers_kept_make_it_wait(folder: Path, waits: Waits) -> None:
    batch = with_kept_sets(random_batch(1))
    num_micro_batches, found = of_step(folder, waits, batch, rollout={"top_k": 9})
    assert num_micro_batches > 3 and found == {"cpu": 1, "_local_scalar_dense": 1}


def test_log_probs_come_by_micro_batch_and_have_no_gradient(folder: Path):
    learner = make_learner(folder)
    parts = rank_micro_batches(random_batch(1), budget_tokens=30, rank=0, num_ranks=1)
    found = learner.passes.logprobs(learner.parallel_chunks, parts, 1.0)
    assert [len(each) for each in found] == [len(micro.targets) for micro in parts] and len(parts) > 1
    assert not any(each.requires_grad for each in found)


def test_a_pass_forward_costs_a_third_of_one_with_gradients_and_each_is_counted_once(folder: Path):
    # A millionth of a TFLOP/s: a million operations in a second.
    learner = make_learner(folder, trainer={"peak_teraflops": 1e-6})
    parts = rank_micro_batches(random_batch(1), budget_tokens=30, rank=0, num_ranks=1)
    both = sum(micro.flops(learner.shape) for micro in parts)
    learner.passes.logprobs(learner.parallel_chunks, parts, 1.0)
    assert learner.passes.utilisation(2.0) == pytest.approx({"model_flops": both / 3, "mfu": both / 3 / 2e6})
    learner.accumulate(MiniBatch(parts, 1.0))
    assert learner.passes.utilisation(1.0)["model_flops"] == pytest.approx(both)
    assert learner.passes.utilisation(1.0) == {"model_flops": 0.0, "mfu": 0.0}


def test_log_probs_over_kept_sets_and_over_all_tokens_come_of_one_pass(folder: Path):
    learner = make_learner(folder)
    batch = random_batch(1)
    parts = rank_micro_batches(
        with_kept_sets(batch), budget_tokens=30, rank=0, num_ranks=1, columns=learner.columns()
    )
    both = learner.passes.both_logprobs(learner.parallel_chunks, parts, 1.0)
    kept = learner.passes.logprobs(learner.parallel_chunks, parts, 1.0)
    whole = learner.passes.whole_logprobs(learner.parallel_chunks, parts, 1.0)
    plain_parts = rank_micro_batches(batch, budget_tokens=30, rank=0, num_ranks=1)
    plain = learner.passes.logprobs(learner.parallel_chunks, plain_parts, 1.0)
    for (own, all_tokens), first, second, third in zip(both, kept, whole, plain, strict=True):
        assert own.equal(first) and all_tokens.tolist() == pytest.approx(second.tolist(), abs=1e-6)
        assert second.tolist() == pytest.approx(third.tolist(), abs=1e-6)
        # Over fewer tokens each one has more.
        assert (own >= all_tokens - 1e-6).all() and (own - all_tokens).max() > 0.1
