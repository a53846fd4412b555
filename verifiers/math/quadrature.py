"""Definite integrals to a given precision.

Only what the quadrature is sure of: when its own estimate of the error is not far below the digits that were
asked for (a pole, a kink, a slow tail), there is no number here, and sympy is asked instead. The quadrature
is mpmath's, tanh-sinh, which takes the singularities at the ends that answers have; the points are Arb's."""

import threading
from collections.abc import Callable
from typing import Any

import mpmath
from flint import acb, arb, fmpq

from verifiers.math.nodes import Operation, Product
from verifiers.math.numbers import Value
from verifiers.math.trees import free_symbols

_GUARD_DIGITS = 10
# No symmetry of the integrand has its middle here, so a pole cannot cancel against itself.
_SPLIT = "0.41421356237"
MAX_BITS = 480
_MAX_KEPT = 256


class NotConverged(ValueError):
    """The quadrature does not vouch for the digits that were asked for."""


_local = threading.local()


def integral(
    node: Operation, ends: list[Value | None], integrand: Callable[[Value], Value], bits: int
) -> Value:
    """The value of a definite integral; an end that is None is infinite. Raises NotConverged, and what the
    integrand raises."""
    if bits > MAX_BITS:
        raise NotConverged("an integral to that many digits")
    if not hasattr(_local, "context"):
        _local.context, _local.kept = mpmath.MPContext(), {}
    context, kept = _local.context, _local.kept
    key = (node, bits, tuple(map(repr, ends)))
    # The integrand of a node without free letters is the same each time; those with letters are not kept.
    has_letters = bool(free_symbols(node))
    if not has_letters and key in kept:
        return kept[key]
    digits = int(bits / 3.3219) - _GUARD_DIGITS
    with context.workdps(digits + 2 * _GUARD_DIGITS):
        value, error = _quadrature(
            context, _limits(context, node, ends), lambda point: _number(context, integrand(_ball(point)))
        )
        allowed = context.mpf(10) ** (2 - digits) * max(1, abs(value))
        if not context.isfinite(value) or error > allowed:
            raise NotConverged("an integral that does not converge fast enough")
        radius = arb(0, _ball(allowed))
        found = _ball(value) + (radius if isinstance(value, context.mpf) else acb(radius, radius))
    if not has_letters and len(kept) < _MAX_KEPT:
        kept[key] = found
    return found


def _limits(context: Any, node: Operation, ends: list[Value | None]) -> list[Any]:
    limits = []
    for end, part in zip(ends, node.parts, strict=True):
        if end is not None:
            limits.append(_number(context, end))
        else:
            limits.append(context.ninf if isinstance(part, Product) else context.inf)
    return limits


def _quadrature(context: Any, ends: list[Any], integrand: Callable[[Any], Any]) -> tuple[Any, Any]:
    low, high = ends
    if low == high:
        return context.mpf(0), context.mpf(0)
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
    return value, error


def _ball(number: Any) -> Value:
    """The exact ball of a number of mpmath."""
    if hasattr(number, "_mpc_"):
        return acb(_ball(number.real), _ball(number.imag))
    sign, mantissa, exponent, _ = number._mpf_
    return arb((-int(mantissa) if sign else int(mantissa), int(exponent)))


def _number(context: Any, value: Value) -> Any:
    """The middle of a ball as a number of mpmath."""
    if type(value) is acb:
        return context.mpc(_number(context, value.real), _number(context, value.imag))
    mantissa, exponent = (arb(value) if type(value) is fmpq else value).mid().man_exp()
    return context.ldexp(context.mpf(int(mantissa)), int(exponent))
