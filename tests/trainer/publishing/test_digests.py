import torch

from asyncrl.serving.tensor_digest import tensor_digest
from asyncrl.trainer.publishing.host_weights import Digests, digests_of


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
