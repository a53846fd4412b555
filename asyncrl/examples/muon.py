"""The Muon optimizer: momentum whose every matrix is made orthogonal before the step.

After Jordan 2024, kellerjordan.github.io/posts/muon. For the weight matrices inside the layers; embeddings,
head and norms belong to AdamW. In float32 and stacked by shape: torch.optim.Muon works in bfloat16 and matrix
by matrix, which made a step of the examples' base model three times as long on a CPU.

Legend: N matrices of equal shape, R rows, C columns.
"""

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration: five rounds bring singular values to about 0.7-1.2."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized; wide and tall matrices take steps of the same spectral size."""

    def __init__(self, params: list[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                stacks.setdefault(tuple(matrix.shape), []).append(matrix)
            for matrices in stacks.values():
                momenta = [self._momentum(matrix, group["momentum"]) for matrix in matrices]
                updates = torch.stack(momenta)
                num_rows, num_columns = updates.shape[1:]
                scale = group["lr"] * max(1.0, num_rows / num_columns) ** 0.5
                for matrix, update in zip(matrices, orthogonalise(updates), strict=True):
                    matrix.sub_(update, alpha=scale)

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        gradient = matrix.grad
        assert gradient is not None, "every matrix takes part in the loss"
        state = self.state[matrix]
        if "buffer" not in state:
            state["buffer"] = torch.zeros_like(matrix)
        buffer: Tensor = state["buffer"]
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """[N, R, C] -> [N, R, C]: the singular vectors of each matrix, its singular values moved close to one."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
