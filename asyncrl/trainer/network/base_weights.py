"""Version 0 of a policy: the weights of the base model, and under adapters their first values.

Every rank calls; names and values do not depend on the layout.
"""

import hashlib
import json
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from asyncrl.serving.tensor_digest import tensor_digest
from asyncrl.trainer.network.convert import load_adapters, load_weights
from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.ranks import ranks


def load_base(model: Policy, fetch: Callable[[str], Tensor], seed: int) -> str | None:
    """Makes the policy the base model, whose tensors `fetch` gives by their Hugging Face names.

    Under adapters, which are fresh then, it returns the base's digest: 16 hex digits over the tensors that
    any rank fetched.
    """
    if model.lora is None:
        load_weights(model, fetch)
        return None
    own: dict[str, str] = {}

    def watch(name: str) -> Tensor:
        tensor = fetch(name)
        own[name] = tensor_digest(tensor)
        return tensor

    load_weights(model, watch)
    start_adapters(model, seed)
    digests = {name: digest for each in ranks.gather(own) for name, digest in each.items()}
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:16]


def start_adapters(model: Policy, seed: int) -> None:
    """B of zeros, so that the policy is the base model, and A by Kaiming's uniform rule, as peft has it: each
    whole matrix from `seed` and its name."""
    load_adapters(model, partial(_first_value, seed))


def _first_value(seed: int, name: str, shape: tuple[int, int]) -> Tensor:
    if "lora_B" in name:
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    # Kaiming's bound for the slope sqrt(5), which torch and peft take for linear layers.
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
