"""The contract of terms that a recipe brings along, checked on small inputs before a run does any work.

A weight, a rejection, a trust region and a surrogate are called as term(LossInputs, options) and give [T];
an advantage is checked where it is found (`advantages.find_advantage`), without torch. What a term gives
during the run is checked at each call (`own_terms`, `advantages.group_advantages`): examples show only what
they hold.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.own_terms import OwnTerm, load_term
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm


def check_terms(algorithm: Algorithm) -> None:
    """Raises InputError for the first term of the recipe's own that breaks the contract."""
    checks = {
        "importance_weight": check_weight,
        "rejection": check_rejection,
        "trust_region": check_rejection,
        "surrogate": check_surrogate,
    }
    for key, term in algorithm.own_terms():
        if key in checks:
            checks[key](load_term(key, term), algorithm)


def check_weight(term: OwnTerm, algorithm: Algorithm) -> None:
    """A finite, non-negative number per token, no gradient, each sequence by itself."""
    found = _per_token(term, algorithm)
    if found.requires_grad:
        raise InputError(
            f"{term.where} gave a tensor with a gradient; a weight has none. Compute it from inputs.proximal "
            f"and inputs.behavior."
        )
    if (found < 0).any():
        raise InputError(f"{term.where} gave {found.tolist()}; expected weights of at least 0.")


def check_rejection(term: OwnTerm, algorithm: Algorithm) -> None:
    """A bool per token, True for kept, each sequence by itself."""
    _per_token(term, algorithm)


def check_surrogate(term: OwnTerm, algorithm: Algorithm) -> None:
    """A finite number per token with a finite gradient through inputs.current.

    A token that the mask leaves out (its weight is 0, it was rejected) has no gradient by others' losses.
    """
    _per_token(term, algorithm)
    inputs = _example()
    losses = _call(term, inputs, algorithm)
    (gradient,) = torch.autograd.grad(losses[inputs.mask].sum(), inputs.current)
    if not gradient.isfinite().all():
        raise InputError(f"{term.where} has the gradient {gradient.tolist()}; expected finite numbers.")
    if gradient[~inputs.mask].any():
        raise InputError(
            f"{term.where} has the gradient {gradient.tolist()} where inputs.mask is {inputs.mask.tolist()}: "
            f"a token that was rejected would be trained by its neighbors. Take means over a sequence by "
            f"asyncrl.algorithms.inputs.sequence_mean, which leaves it out."
        )


def _per_token(term: OwnTerm, algorithm: Algorithm) -> Tensor:
    """The term's values on two sequences, found to be those that each sequence gives alone."""
    inputs = _example()
    found = _call(term, inputs, algorithm)
    nothing = _select(inputs, torch.zeros(len(inputs.mask), dtype=torch.bool))
    _call(term, nothing, algorithm)
    parts = [_call(term, _select(inputs, inputs.sequence_ids == i), algorithm) for i in (0, 1)]
    if not torch.allclose(torch.cat(parts).float(), found.float(), rtol=1e-4, atol=1e-5):
        raise InputError(
            f"{term.where} gave {found.tolist()} for two sequences together and "
            f"{torch.cat(parts).tolist()} for each alone; a token may depend on its own sequence only, or "
            f"packing would change the loss."
        )
    return found


def _call(term: OwnTerm, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
    found = term(inputs, algorithm)
    if not found[inputs.mask].float().isfinite().all():
        raise InputError(
            f"{term.where} gave {found.tolist()}; expected finite numbers. Bound log-ratios before exp: they "
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
        lags=torch.tensor([2, 1, 1, 0, 0, 0]),
        versions=torch.tensor([3, 4, 4, 5, 5, 5]),
        finishes=("stop", "length"),
        sources=("easy", "hard"),
    )


def _select(inputs: LossInputs, chosen: Tensor) -> LossInputs:
    values = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
    fields: dict[str, Any] = {k: value[chosen] for k, value in values.items() if torch.is_tensor(value)}
    for name in ("finishes", "sources"):
        fields[name] = tuple(values[name][i] for i in fields["sequence_ids"].unique().tolist())
    fields["sequence_ids"] = torch.zeros_like(fields["sequence_ids"])
    return dataclasses.replace(inputs, **fields)
