"""Buckets of a version in the CPU's memory, and digests of its tensors."""

import torch

from asyncrl.serving.tensor_digest import tensor_digest
from asyncrl.trainer.network.convert import ExportedTensor
from asyncrl.trainer.publishing.host_weights import Digests, digests_of, plan_buckets


def test_a_digest_is_of_the_bytes_whatever_their_shape():
    tensor = torch.arange(12, dtype=torch.float32)
    assert tensor_digest(tensor) == tensor_digest(tensor.view(3, 4))
    assert tensor_digest(tensor.view(3, 4).T) == tensor_digest(tensor.view(3, 4).T.contiguous())
    assert len(tensor_digest(tensor)) == 16


def test_each_bit_counts():
    tensor = torch.zeros(1000, dtype=torch.bfloat16)
    seen = {tensor_digest(tensor)}
    for place in (0, 499, 999):
        changed = tensor.clone()
        changed.view(torch.int16)[place] ^= 1
        seen.add(tensor_digest(changed))
    assert len(seen) == 4


def test_digests_are_taken_of_what_passes():
    weights = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    digests = Digests()
    assert dict(digests.watch(weights.items())) == weights
    assert digests.by_name == digests_of(weights)


def tensor(name: str, size: int, *, stage: int = 0, dtype: torch.dtype = torch.float32) -> ExportedTensor:
    return ExportedTensor(name, (size,), dtype, stage, sender=2 * stage, is_fixed=False)


def names(tensors: list[ExportedTensor], max_bytes: int) -> list[list[str]]:
    return [[t.name for t in bucket.tensors] for bucket in plan_buckets(tensors, max_bytes=max_bytes)]


def test_buckets_keep_the_order_and_bound_the_bytes():
    tensors = [tensor(name, size) for name, size in zip("abcde", (10, 10, 10, 100, 1), strict=True)]
    assert names(tensors, 80) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_a_bucket_has_tensors_of_one_stage():
    found = plan_buckets([tensor("a", 1), tensor("b", 1, stage=1), tensor("c", 1, stage=1)], max_bytes=80)
    assert [(bucket.stage, bucket.sender, bucket.num_bytes) for bucket in found] == [(0, 0, 4), (1, 2, 8)]


def test_a_tensor_begins_where_its_type_may():
    # Three numbers of two bytes end at byte 6, where none of four bytes may begin.
    halves = tensor("a", 3, dtype=torch.bfloat16)
    assert names([halves, tensor("b", 1), tensor("c", 1)], 80) == [["a"], ["b", "c"]]


def test_views_of_the_flat_bytes_are_the_tensors():
    (bucket,) = plan_buckets([tensor("a", 2), tensor("b", 3, dtype=torch.bfloat16)], max_bytes=80)
    flat = torch.zeros(bucket.num_bytes, dtype=torch.uint8)
    bucket.views(flat)["a"].copy_(torch.tensor([1.0, 2.0]))
    bucket.views(flat)["b"].copy_(torch.tensor([3.0, 4.0, 5.0]))
    assert flat[:8].view(torch.float32).tolist() == [1.0, 2.0]
    assert flat[8:].view(torch.bfloat16).tolist() == [3.0, 4.0, 5.0]
