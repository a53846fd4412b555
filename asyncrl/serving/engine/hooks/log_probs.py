"""The distribution that tokens are sampled from, and that log-probs are of: without the tokens that no text
contains (asyncrl/model/unsampled.py), and for input tokens too at the temperature of the request.

The hooks run in the scheduler, on a CPU and on a GPU alike.
"""

import functools
import math
import os
from pathlib import Path

import torch

from asyncrl.model.unsampled import UNSAMPLED_VARIABLE, Unsampled, find_unsampled
from asyncrl.serving.sglang.hooks import INPUT_LOGPROBS


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    logits = "sglang.srt.layers.logits_processor"
    return [
        ("sglang.srt.layers.sampler.Sampler._preprocess_logits", _mask, "after"),
        (f"{logits}.LogitsMetadata.from_forward_batch", _note_temperatures, "after"),
        (INPUT_LOGPROBS, _of_samplers, "around"),
    ]


# Logits of tokens that no text contains become -inf last, after grammars and processors and before anything
# is sampled: the tokens and the log-probs of every way to sample, greedy too, are those of the distribution
# without them. The ids are the whole server's, from its environment or else from its model folder.
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


# SGLang 0.5.23 gives the sampled tokens log-probs after the request's temperature, and the tokens of the
# input log-probs before it, over all rows of the output layer. Here the logits of input tokens are divided by
# the temperature of their request, and tokens that are never sampled become -inf first: a server that scores
# a text says what it says of its own. Rows that a token is sampled from stay as they are.
def _note_temperatures(metadata, cls, forward_batch):
    """SGLang leaves this field empty, and nothing of it reads it."""
    if forward_batch.sampling_info is not None:
        metadata.temperature = forward_batch.sampling_info.temperatures
    return metadata


def _of_samplers(
    original,
    processor,
    pruned_states,
    sample_indices,
    input_logprob_indices,
    token_to_seq_idx,
    lm_head,
    get_logits_fn,
    logits_metadata,
    **keywords,
):
    """`pruned_states` [R, H] of the rows that logits are asked of, in chunks one after the other;
    `input_logprob_indices` of those that say something of the input, `sample_indices` of those that a token
    is sampled from; `token_to_seq_idx` [R] their requests."""
    temperatures = logits_metadata.temperature
    columns = never_sampled(pruned_states.device)
    scores = torch.zeros(len(pruned_states), dtype=torch.bool, device=pruned_states.device)
    scores[input_logprob_indices] = True
    scores[sample_indices] = False
    divisors = torch.ones(len(pruned_states), 1, device=pruned_states.device)
    if temperatures is not None:
        requests = torch.as_tensor(token_to_seq_idx[: len(pruned_states)], device=pruned_states.device)
        divisors = torch.where(scores[:, None], temperatures.view(-1, 1)[requests], divisors)
    first = 0

    def logits_of(states, *arguments, **options):
        nonlocal first
        own = slice(first, first + len(states))
        first += len(states)
        logits = get_logits_fn(states, *arguments, **options)
        if columns is not None:
            rows = scores[own].nonzero()
            logits[rows, columns] = -math.inf
        return logits.div_(divisors[own].to(logits.dtype))

    return original(
        processor,
        pruned_states=pruned_states,
        sample_indices=sample_indices,
        input_logprob_indices=input_logprob_indices,
        token_to_seq_idx=token_to_seq_idx,
        lm_head=lm_head,
        get_logits_fn=logits_of,
        logits_metadata=logits_metadata,
        **keywords,
    )
