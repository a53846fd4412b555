"""One query per head against its cached keys in bfloat16, as few large products instead of many small ones.

torch's kernel makes several small products per request and head; on a CPU their set-up costs more than the
arithmetic. Here neighbouring key-value heads of a request are one matrix of keys: the queries of a head stand
in that head's columns, between zeros, so that the heads are one product and no key is copied. The zeros
multiply the arithmetic, which is still the smaller cost.

Scores keep the precision of a float32 sum although torch's products of bfloat16 return bfloat16: a second
product subtracts the rounded scores before it rounds, which leaves what the first one lost.

Shapes: B requests (times groups of heads), K keys, G key-value heads, R query heads of each, D head size, E
value size.
"""

import torch
from torch import Tensor

HEADS_AT_ONCE = 4
"""Most key-value heads of one product: each one more adds zeros to all others."""


def heads_at_once(num_heads: int) -> int:
    """How many of a layer's key-value heads go into one product, a divisor of `num_heads`."""
    return max(size for size in range(1, HEADS_AT_ONCE + 1) if num_heads % size == 0)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """[B, G, R, D], [B, K, G * D], [B, K, G * E] -> [B, G * R, E], all in one type.

    `mask` [B, 1, K] float32 is 0 where a request may see a key, else -inf.
    """
    batch, heads, each, size = queries.shape
    spread = queries.new_zeros(batch, heads, each, heads, size)
    spread.diagonal(dim1=1, dim2=3).copy_(queries.permute(0, 2, 3, 1))
    spread = spread.view(batch, heads * each, heads * size)
    rounded = torch.bmm(spread, keys.mT)
    lost = torch.baddbmm(rounded, spread, keys.mT, beta=-1)
    scores = torch.add(mask, rounded, alpha=scale).add_(lost, alpha=scale)
    attended = torch.bmm(torch.softmax(scores, -1).to(values.dtype), values)
    own = attended.view(batch, heads, each, heads, -1).diagonal(dim1=1, dim2=3)
    return own.permute(0, 3, 1, 2).reshape(batch, heads * each, -1)
