"""Tokens that no text contains are never sampled (asyncrl/model/unsampled.py), whatever their logits say.

Their logits become -inf last, after grammars and processors and before anything is sampled: the tokens and
the log-probs of every way to sample, greedy too, are those of the distribution without them. The ids are the
whole server's, from its environment or else from its model folder, and cost no request anything. The hook
runs in the scheduler, on a CPU and on a GPU alike.
"""

import functools
import math
import os
from pathlib import Path

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.model.unsampled import UNSAMPLED_VARIABLE, Unsampled, find_unsampled


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register("sglang.srt.layers.sampler.Sampler._preprocess_logits", _mask, HookType.AFTER)


@functools.cache
def unsampled() -> Unsampled:
    """The ids that this server never samples."""
    given = os.environ.get(UNSAMPLED_VARIABLE)
    if given is not None:
        return Unsampled.parse(given)
    from sglang.srt.runtime_context import get_server_args

    return find_unsampled(Path(get_server_args().model_path))


@functools.cache
def never_sampled(device):
    """[n] int64 ids; None where every token may be sampled."""
    return torch.tensor(unsampled().ids, device=device) if unsampled().ids else None


def _mask(logits, *_, **__):
    """`logits` [N, V], in place."""
    columns = never_sampled(logits.device)
    return logits if columns is None else logits.index_fill_(1, columns, -math.inf)
