"""The contract of terms that a recipe brings along, checked on small inputs before a run does any work.

A weight, a rejection and a surrogate are called as term(LossInputs, Algorithm) and give [T]; an advantage is
checked where it is found (`advantages.find_advantage`), without torch.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import Term, find_term
from asyncrl.algorithms.rejections import REJECTIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.weights import WEIGHTS
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm


def check_terms(algorithm: Algorithm) -> None:
    """Raises InputError for the first term of the recipe's own that breaks the contract."""
    if algorithm.importance_weight not in WEIGHTS:
        term: Term = find_term(algorithm.importance_weight, WEIGHTS)
        check_weight(f"algorithm.importance_weight {algorithm.importance_weight}", term, algorithm)
    for name in algorithm.rejection:
        if name not in REJECTIONS:
            check_rejection(f"algorithm.rejection {name}", find_term(name, REJECTIONS), algorithm)
    if algorithm.surrogate not in SURROGATES:
        check_surrogate(
            f"algorithm.surrogate {algorithm.surrogate}",
            find_term(algorithm.surrogate, SURROGATES),
            algorithm,
        )


def check_weight(where: str, term: Term, algorithm: Algorithm) -> None:
    """A finite, non-negative number per token, no gradient, each sequence by itself."""
    found = _per_token(where, term, algorithm)
    if found.requires_grad:
        raise InputError(
            f"{where} gave a tensor with a gradient; a weight has none. Compute it from inputs.proximal and "
            f"inputs.behavior."
        )
    if (found < 0).any():
        raise InputError(f"{where} gave {found.tolist()}; expected weights of at least 0.")


def check_rejection(where: str, term: Term, algorithm: Algorithm) -> None:
    """A bool per token, True for kept, each sequence by itself."""
    found = _per_token(where, term, algorithm)
    if found.dtype is not torch.bool:
        raise InputError(f"{where} gave {found.dtype}; expected torch.bool, True for tokens that are kept.")


def check_surrogate(where: str, term: Term, algorithm: Algorithm) -> None:
    """A finite number per token with a finite gradient through inputs.current.

    A token that the mask leaves out (its weight is 0, it was rejected) has no gradient by others' losses.
    """
    found = _per_token(where, term, algorithm)
    if not found.requires_grad:
        raise InputError(
            f"{where} gave a tensor without a gradient; a surrogate has one through inputs.current."
        )
    inputs = _example()
    losses = _call(where, term, inputs, algorithm)
    (gradient,) = torch.autograd.grad(losses[inputs.mask].sum(), inputs.current)
    if not gradient.isfinite().all():
        raise InputError(f"{where} has the gradient {gradient.tolist()}; expected finite numbers.")
    if gradient[~inputs.mask].any():
        raise InputError(
            f"{where} has the gradient {gradient.tolist()} where inputs.mask is {inputs.mask.tolist()}: a "
            f"token that was rejected would be trained by its neighbours. Take means over a sequence by "
            f"asyncrl.algorithms.inputs.sequence_mean, which leaves it out."
        )


def _per_token(where: str, term: Term, algorithm: Algorithm) -> Tensor:
    """The term's values on two sequences, found to be those that each sequence gives alone."""
    inputs = _example()
    found = _call(where, term, inputs, algorithm)
    nothing = _select(inputs, torch.zeros(len(inputs.mask), dtype=torch.bool))
    _call(where, term, nothing, algorithm)
    parts = [_call(where, term, _select(inputs, inputs.sequence_ids == i), algorithm) for i in (0, 1)]
    if not torch.allclose(torch.cat(parts).float(), found.float(), rtol=1e-4, atol=1e-5):
        raise InputError(
            f"{where} gave {found.tolist()} for two sequences together and {torch.cat(parts).tolist()} for "
            f"each alone; a token may depend on its own sequence only, or packing would change the loss."
        )
    return found


def _call(where: str, term: Term, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    size = len(inputs.mask)
    try:
        found = term(inputs, algorithm)
    except Exception as error:
        raise InputError(
            f"{where}, called with (LossInputs of {size} tokens, Algorithm), raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Tensor) or found.shape != (size,):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{where} gave {shape} for {size} tokens; expected a tensor of shape ({size},).")
    if not found[inputs.mask].isfinite().all():
        raise InputError(
            f"{where} gave {found.tolist()}; expected finite numbers. Bound log-ratios before exp: they "
            f"reach hundreds where engines disagree (asyncrl.algorithms.inputs.bounded_ratio)."
        )
    return found


def _example() -> LossInputs:
    """Two sequences with usual ratios, an extreme one each way, and a token that does not count."""
    proximal = torch.tensor([-1.0, -0.5, -2.0, -0.1, -3.0, -0.7])
    current = (proximal + torch.tensor([0.1, -0.1, 0.0, 0.4, -0.4, 0.0])).requires_grad_()
    return LossInputs(
        current=current,
        proximal=proximal,
        behavior=torch.tensor([-1.1, -300.0, -2.0, -0.2, -0.001, -0.7]),
        advantages=torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5, -0.5]),
        mask=torch.tensor([True, True, False, True, True, True]),
        sequence_ids=torch.tensor([0, 0, 0, 1, 1, 1]),
        entropies=torch.full((6,), 0.7),
        reference=proximal - 0.2,
    )


def _select(inputs: LossInputs, chosen: Tensor) -> LossInputs:
    values = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
    fields: dict[str, Any] = {k: value[chosen] for k, value in values.items() if torch.is_tensor(value)}
    fields["sequence_ids"] = torch.zeros_like(fields["sequence_ids"])
    return dataclasses.replace(inputs, **fields)
