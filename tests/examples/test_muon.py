"""The orthogonalisation, against the singular values it promises."""

import torch

from asyncrl.examples.base_model import Muon, orthogonalise


def test_singular_values_come_close_to_one_for_wide_and_tall_matrices():
    torch.manual_seed(0)
    for shape in [(3, 16, 16), (2, 16, 48), (2, 48, 16)]:
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.max() < 1.3
        # A random square matrix has values near zero that five rounds lift only part of the way.
        assert values.median() > 0.65


def test_the_singular_vectors_stay_the_same():
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(8, 8))[0] for _ in range(2))
    matrix = left @ torch.diag(torch.linspace(1.0, 3.0, 8)) @ right.T
    diagonal = left.T @ orthogonalise(matrix[None])[0] @ right
    assert torch.allclose(diagonal, torch.diag(torch.diagonal(diagonal)), atol=1e-4)


def test_steps_lead_to_the_minimum_of_a_quadratic():
    target = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    matrix = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = Muon([matrix], lr=0.05, momentum=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        ((matrix - target) ** 2).sum().backward()
        optimizer.step()
    assert (matrix - target).abs().max() < 0.1
