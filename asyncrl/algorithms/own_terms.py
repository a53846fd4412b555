"""Terms of the loss that a recipe brings along: weights, rejections, trust regions and surrogates, each
called as term(LossInputs, options) and giving [T].

`check_terms` tries them on small inputs before a run does any work. During the run each call is checked
without a wait for the device: type, shape, dtype, device and gradient are known to the host, and wrong ones
raise at once; values are judged on the device by three numbers per call, which are read with the sums of the
step; the gradient likewise (`GradientWatch`), read only where its norm is no number. An advantage is checked
by `advantages.find_advantage`, without torch. Shapes: T response tokens of one micro-batch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.recipe.terms import OwnFunction

Term = Callable[[LossInputs, Algorithm], Tensor]
"""[T] per token: a weight, a rejection or a trust region (no gradient), or a surrogate (with one through
`current`). A term of the recipe's own gets its options, as attributes, in the place of Algorithm."""


@dataclass(frozen=True, slots=True)
class OwnTerm:
    """Called like the term, of which it is one."""

    key: str
    """importance_weight, rejection, trust_region or surrogate."""
    name: str
    term: Term

    @property
    def selects(self) -> bool:
        """Whether it says which tokens, not how much."""
        return self.key in ("rejection", "trust_region")

    @property
    def where(self) -> str:
        return f"algorithm.{self.key} {self.name}"

    def __call__(self, inputs: LossInputs, algorithm: Algorithm) -> Tensor:
        """[T] as the term gave it. Raises InputError for what is no such tensor, and for what it raised."""
        size = len(inputs.mask)
        try:
            found = self.term(inputs, algorithm)
        except Exception as error:  # the boundary: whatever a term of the recipe's own raises
            raise InputError(
                f"{self.where}, called with (LossInputs of {size} tokens, options), raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, Tensor) or found.shape != (size,):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"{self.where} gave {shape} for {size} tokens; expected a tensor of shape ({size},)."
            )
        if found.device != inputs.mask.device:
            raise InputError(
                f"{self.where} gave a tensor on {found.device}; expected {inputs.mask.device}, where its "
                f"inputs are."
            )
        if self.selects and found.dtype is not torch.bool:
            raise InputError(
                f"{self.where} gave {found.dtype}; expected torch.bool, True for tokens that are kept."
            )
        if not self.selects and not found.dtype.is_floating_point:
            raise InputError(f"{self.where} gave {found.dtype}; expected floating-point numbers.")
        has_gradient = torch.is_grad_enabled() and inputs.current.requires_grad and size > 0
        if self.key == "surrogate" and has_gradient and not found.requires_grad:
            raise InputError(
                f"{self.where} gave a tensor without a gradient; a surrogate has one through inputs.current."
            )
        return found

    def faults(self, found: Tensor, inputs: LossInputs) -> "Faults":
        """Finds values that are not finite float32 at tokens that count, and weights below 0."""
        values = found.detach().float()
        is_bad = ~values.isfinite()
        if self.key == "importance_weight":
            is_bad = is_bad | (values < 0)
        first = _first(is_bad & inputs.mask, found.detach(), inputs.sequence_ids)
        return Faults(f"{self.where} gave", *first)


class Faults(NamedTuple):
    """On the device; nothing here is read unless a step found one."""

    what: str
    number: Tensor
    """Scalar float64: at how many tokens."""
    value: Tensor
    """[1] or [0], of the first one."""
    sequence: Tensor
    """[1] or [0], its place in `MicroBatch.names`."""


class GradientWatch:
    """Counts the elements of a gradient that are not finite, as the backward pass brings it."""

    def __init__(self) -> None:
        self.found: list[tuple[Faults, Sequence[str]]] = []
        """One per micro-batch, with the names of its sequences."""

    def watch(self, what: str, inputs: LossInputs, names: Sequence[str]) -> None:
        ids = inputs.sequence_ids

        def judge(gradient: Tensor) -> None:
            self.found.append((Faults(what, *_first(~gradient.isfinite(), gradient, ids)), names))

        if inputs.current.requires_grad:
            inputs.current.register_hook(judge)


def describe(found: Sequence[tuple[Faults, Sequence[str]]]) -> str:
    """A sentence about the first fault, of each micro-batch with its sequences' names; empty without one.
    Waits for the device."""
    for faults, names in found:
        if count := int(faults.number.item()):
            name = names[int(faults.sequence.item())]
            return (
                f"{faults.what} {faults.value.item()} at {count} token(s) of a micro-batch, first in the "
                f"trajectory {name}"
            )
    return ""


def own_names(algorithm: Algorithm) -> list[str]:
    """Key and name of each term that the recipe brings along, its advantage included."""
    return [f"algorithm.{key} {term.name}" for key, term in algorithm.own_terms()]


def load_term(key: str, term: OwnFunction) -> OwnTerm:
    """Raises InputError where there is no such object."""
    return OwnTerm(key, term.name, term.load())


def _first(is_bad: Tensor, values: Tensor, sequence_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many, and value and sequence of the first; indexed so that no host reads the place."""
    place = is_bad.int().argmax(0, keepdim=True) if len(is_bad) else sequence_ids[:0]
    return is_bad.sum().double(), values.index_select(0, place), sequence_ids.index_select(0, place)


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
