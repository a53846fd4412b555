"""A term of the loss that the recipe brings along, checked at each call without a wait for the device.

Its type, shape, dtype, device and gradient are known to the host, and wrong ones raise at once. Its values
are judged on the device: three numbers per call, which are read with the sums of the step. The gradient that
it makes is judged likewise (`GradientWatch`) and read only where the gradient's norm is no number.

Shapes: T response tokens of one micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
