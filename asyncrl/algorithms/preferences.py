"""Losses of a pair of responses, by how much more the policy prefers the chosen one than the reference.

Shapes: N pairs. h is [N] float64: (ln p(chosen) - ln p(rejected)) of the policy, less that of the reference.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(h: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - e) ln sigmoid(beta h) - e ln sigmoid(-beta h), e the label smoothing; log-probs are sums

    Source: Rafailov et al. 2023 (arXiv 2305.18290); cDPO, Mitchell 2023.
    Use: pairs of which some disagree.
    Fails: the likelihood of the chosen responses may fall, too; pairs that all agree pull without end.
    """
    return -(1 - label_smoothing) * logsigmoid(beta * h) - label_smoothing * logsigmoid(-beta * h)


def ipo(h: Tensor, *, beta: float) -> Tensor:
    """(h - 1 / (2 beta))^2; log-probs are means

    Source: Azar et al. 2023 (arXiv 2310.12036); means as in TRL and its authors' reply there.
    Use: pairs that all agree: h has a goal.
    """
    return (h - 1 / (2 * beta)).square()
