"""Plain sampling on a CPU in one pass over the vocabulary, by inverse transform: one random number per
request finds the block of words, then the word in it.

SGLang 0.5.23 draws an exponential number for each word of the vocabulary, and takes the logarithm of each
probability to report one of them: at 49,000 words as much time as the products of a decoding step. Greedy
decoding is sampling that takes the likeliest word; top-k, top-p, min-p, seeds and lists of log-probs stay
SGLang's. The hook runs in the scheduler.

Shapes: N requests, V vocabulary, B blocks.
"""

import torch

from asyncrl.model.supported import is_bitwise
from asyncrl.serving.kernels.bitwise import token_logprobs

BLOCK = 256
"""Words; the square root of a usual vocabulary, so that both searches are short."""

LOGITS_AT_ONCE = 2**18
"""Rows are computed in slices of this size: 1 MiB stays in the processor's cache over all passes."""

ALMOST_ONE = 1 - 1e-12
"""A share of a total at most this large lies below the total in float64."""


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    return [("sglang.srt.layers.sampler.Sampler.forward", _sample_shortly, "around")]


def _sample_shortly(
    original,
    sampler,
    logits_output,
    sampling_info,
    return_logprob,
    top_logprobs_nums,
    token_ids_logprobs,
    positions,
    *,
    logprob_logits=None,
):
    needs_more = (
        sampler.enable_deterministic
        or logprob_logits is not None
        or _cuts_words(sampling_info)
        or sampling_info.sampling_seed is not None
        or sampling_info.sampling_mask_batch_indices is not None
        # Both lists are None in a batch that reports no log-probs.
        or (return_logprob and any(top_logprobs_nums))
        or (return_logprob and any(ids is not None for ids in token_ids_logprobs))
    )
    temperatures = sampling_info.temperatures
    if needs_more:
        kept = logits_output.next_token_logits.clone() if return_logprob and is_bitwise() else None
        tokens = original(
            sampler,
            logits_output,
            sampling_info,
            return_logprob,
            top_logprobs_nums,
            token_ids_logprobs,
            positions,
            logprob_logits=logprob_logits,
        )
        if kept is not None:
            # Requests that cut words share a step with others, whose log-probs are trained.
            kept = sampler._preprocess_logits(kept, sampling_info)
            logits_output.next_token_logprobs = token_logprobs(kept, temperatures, tokens)
        return tokens
    logits = sampler._preprocess_logits(logits_output.next_token_logits, sampling_info)
    is_greedy = _is_greedy(sampling_info)
    kept = logits.clone() if return_logprob and is_bitwise() else None
    tokens, logprobs = sample(logits, temperatures, is_greedy)
    if kept is not None:
        logprobs = token_logprobs(kept, temperatures, tokens)
    if return_logprob:
        logits_output.next_token_logprobs = logprobs
    sampler._sync_token_ids_across_tp(tokens, sampling_info)
    return tokens


def _cuts_words(sampling_info) -> bool:
    """Whether a request samples from some of its words only.

    SGLang's flags alone do not tell: a request that joins a batch sets them for all. They stay set when it
    has ended. After one greedy request they would say so for the rest of a run.
    """
    from sglang.srt.sampling.sampling_params import TOP_K_ALL

    return bool(
        (sampling_info.need_top_p_sampling and (sampling_info.top_ps != 1).any())
        or (sampling_info.need_min_p_sampling and (sampling_info.min_ps > 0).any())
        or (
            sampling_info.need_top_k_sampling
            and ((sampling_info.top_ks > 1) & (sampling_info.top_ks != TOP_K_ALL)).any()
        )
    )


def _is_greedy(sampling_info):
    """[N] which requests take the likeliest word; None where none does."""
    return sampling_info.top_ks == 1 if sampling_info.need_top_k_sampling else None


def sample(logits, temperatures, is_greedy=None):
    """Tokens [N] int32 of softmax(logits / temperature) and their float32 log-probs there [N].

    Overwrites `logits` [N, V] float32; `temperatures` are [N, 1]. Rows that `is_greedy` [N] bool marks take
    their likeliest word.
    """
    num_rows = max(1, LOGITS_AT_ONCE // logits.shape[1])
    parts = zip(logits.split(num_rows), temperatures.split(num_rows), strict=True)
    sums = torch.cat([_block_sums(*part) for part in parts]).double().cumsum(-1)
    tokens = _draw(logits, sums)
    if is_greedy is not None:
        rows = is_greedy.nonzero().squeeze(1)
        tokens[rows] = logits[rows].argmax(-1, keepdim=True)
    logprobs = logits.gather(1, tokens).double() - sums[:, -1:].log()
    return tokens.int().squeeze(1), logprobs.float().squeeze(1)


def _block_sums(logits, temperatures):
    """Sums of weights, exp(logits) [N, B]; makes logits tempered and relative to the largest of their row."""
    if not torch.equal(temperatures, torch.ones_like(temperatures)):
        logits.div_(temperatures)
    logits.sub_(logits.amax(-1, keepdim=True))
    num_words = logits.shape[1]
    num_blocks = -(-num_words // BLOCK)
    weights = logits.new_empty(len(logits), num_blocks * BLOCK)
    weights[:, num_words:] = 0
    torch.exp(logits, out=weights[:, :num_words])
    return weights.view(-1, num_blocks, BLOCK).sum(-1)


def _draw(logits, sums):
    """Words [N, 1], each with a probability in proportion to its weight, exp(logits).

    `sums` [N, B] are the cumulated float64 sums of the blocks. A word of weight 0 is never drawn: the sum up
    to it does not rise above what the words before it already reached.
    """
    shares = torch.rand(len(sums), 1, dtype=torch.float64).clamp_(max=ALMOST_ONE)
    wanted = shares * sums[:, -1:]
    block = torch.searchsorted(sums, wanted, right=True)
    ends = sums.gather(1, block)
    begins = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    words = block * BLOCK + torch.arange(BLOCK)
    # The last block may be short.
    weights = logits.gather(1, words.clamp(max=logits.shape[1] - 1)).exp()
    within = weights.masked_fill_(words >= logits.shape[1], 0).double().cumsum(-1)
    # As a share of the block, because its float32 sum is rounded in another order than this one.
    rest = ((wanted - begins) / (ends - begins)).clamp_(max=ALMOST_ONE) * within[:, -1:]
    return block * BLOCK + torch.searchsorted(within, rest, right=True)
