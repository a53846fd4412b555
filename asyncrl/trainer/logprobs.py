"""Log-probs and entropies of the distribution that tokens are sampled from: softmax(logits / temperature).

Shapes: T response tokens, V vocabulary.
"""

import torch
from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """[T, V], [T] -> float32 natural log-probs of the targets [T] with gradient, entropies [T] without."""
    everything = torch.log_softmax(logits.float() / temperature, dim=-1)
    with torch.no_grad():
        entropies = torch.special.entr(everything.exp()).sum(-1)
    return everything.gather(-1, targets[:, None]).squeeze(-1), entropies
