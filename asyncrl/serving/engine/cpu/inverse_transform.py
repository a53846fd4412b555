"""Sampling by inverse transform: one random number per request finds the block of words, then the word in it.

Shapes: N requests, V vocabulary, B blocks.
"""

import torch

BLOCK = 256
"""Words; the square root of a usual vocabulary, so that both searches are short."""
LOGITS_AT_ONCE = 2**18
"""Rows are computed in slices of this size: 1 MiB stays in the processor's cache over all passes."""
ALMOST_ONE = 1 - 1e-12
"""A share of a total at most this large lies below the total in float64."""


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
