"""Definite integrals to any number of digits.

Only what the quadrature is sure of: when its own estimate of the error is not far below the digits that were
asked for (a pole, a kink, a slow tail), there is no number here, and sympy is asked instead."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from verifiers.math.nodes import Constant, Node, Number, Operation, Product

_INFINITY = Constant("infinity")
_ENDS = {_INFINITY: "inf", Product((Number(Fraction(-1)), _INFINITY)): "ninf"}
_GUARD_DIGITS = 10
# No symmetry of the integrand has its middle here, so a pole cannot cancel against itself.
_SPLIT = "0.41421356237"
MAX_DIGITS = 130


class NotConverged(ValueError):
    """The quadrature does not vouch for the digits that were asked for."""


Integrand = Callable[[Any], Any]
"""The value at one point, a number of the context."""


def integral(
    context: Any, node: Operation, value_of: Callable[[Node], Any], integrand: Integrand, *, is_closed: bool
) -> Any:
    """The value of a definite integral at the context's precision. Raises NotConverged, and what the
    integrand raises.

    `is_closed`: no letter inside has its value from outside, so the result can be kept."""
    ends = [getattr(context, _ENDS[part]) if part in _ENDS else value_of(part) for part in node.parts]
    if context.dps > MAX_DIGITS:
        raise NotConverged("an integral to that many digits")
    if is_closed:
        return _kept(context, context.dps, node, tuple(ends), _Same(integrand))
    return _quadrature(context, ends, integrand)


class _Same:
    """An integrand that the cache ignores: the node in the same key determines it."""

    def __init__(self, integrand: Integrand) -> None:
        self.integrand = integrand

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=256)
def _kept(context: Any, digits: int, node: Operation, ends: tuple[Any, ...], same: _Same) -> Any:
    return _quadrature(context, list(ends), same.integrand)


def _quadrature(context: Any, ends: list[Any], integrand: Integrand) -> Any:
    digits = context.dps
    with context.workdps(digits + _GUARD_DIGITS):
        low, high = ends
        if low == high:
            return context.mpf(0)
        split = context.mpf(_SPLIT)
        if context.isinf(low) and context.isinf(high):
            middle = split
        elif context.isinf(high):
            middle = low + split
        elif context.isinf(low):
            middle = high - split
        else:
            middle = low + (high - low) * split
        value, error = context.quad(integrand, [low, middle, high], error=True)
        if not context.isfinite(value) or error > context.mpf(10) ** (2 - digits) * max(1, abs(value)):
            raise NotConverged("an integral that does not converge fast enough")
        return +value
