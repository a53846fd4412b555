"""How often log-probs and their gradient read or write a matrix of all logits: on a GPU each pass costs as
much as its bytes take to move."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import asyncrl.trainer.network.logprobs as logprobs_module
import asyncrl.trainer.network.output_kernels as kernels_module
from asyncrl.trainer.network.logprobs import output_logprobs

TOKENS, VOCABULARY = 40, 300
VIEWS = ("view", "slice", "select", "t", "transpose", "detach", "alias", "expand", "unsqueeze")
CREATIONS = ("empty_like", "new_full")
PRODUCTS = ("mm", "addmm", "linear", "matmul")
COLUMNS = ("index_fill_", "scatter_add_", "gather", "index_select", "index_copy_")
"""They touch some columns of each row."""


class Passes(TorchDispatchMode):
    """Names of operations that read or write a whole matrix of logits, but products."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        if name not in VIEWS + CREATIONS + PRODUCTS + COLUMNS and any(
            x.numel() == TOKENS * VOCABULARY for x in tensors
        ):
            self.names.append(name)
        return result


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one chunk and one slice, and 16-bit numbers are converted as they are read."""
    monkeypatch.setattr(kernels_module, "converts_as_it_computes", lambda tensor: True)
    monkeypatch.setattr(logprobs_module, "SLICE_LOGITS", TOKENS * VOCABULARY)


@pytest.mark.parametrize("unsampled", [None, torch.tensor([3, 7])])
@pytest.mark.parametrize(
    ("temperature", "has_entropy", "forward", "backward"),
    [
        # The largest, less it, exponentials, their sum, times the logits, and that sum.
        (1.0, False, ["amax", "sub", "exp", "sum", "mul_", "sum"], ["sub", "exp_", "mul_", "copy_"]),
        (
            0.7,
            False,
            ["amax", "div", "sub_", "exp", "sum", "mul_", "sum"],
            # Tempered again, and rounded as it is written.
            ["div", "sub_", "exp_", "mul_", "div"],
        ),
        (
            1.0,
            True,
            ["amax", "sub", "exp", "sum", "mul_", "sum"],
            ["sub", "exp", "add_", "mul_", "sub_", "mul_", "copy_"],
        ),
    ],
)
def test_each_pass_over_the_logits_is_needed(
    unsampled: torch.Tensor | None,
    temperature: float,
    has_entropy: bool,
    forward: list[str],
    backward: list[str],
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, 8, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, 8, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(10, VOCABULARY, (TOKENS,), generator=generator)
    with Passes() as there:
        values = output_logprobs(
            hidden, weight, targets, temperature, vocab_size=VOCABULARY, unsampled=unsampled
        )
    assert there.names == forward
    total = values[0].sum() + values[1].sum() if has_entropy else values[0].sum()
    with Passes() as back:
        total.backward()
    assert back.names == backward
