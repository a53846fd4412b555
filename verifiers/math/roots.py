"""The zeros of a function of one real letter, to a few digits: they say where to look, and prove nothing."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

_GRID = tuple(
    sorted(sign * Fraction(10) ** decade * 3 for sign in (1, -1) for decade in range(-3, 13)) + [Fraction(0)]
)
_NUM_HALVINGS = 30
_SMALLEST = 1e-25


def real_parts_of_roots(context: Any, coefficients: list[Any]) -> list[Fraction]:
    """The real parts of the roots of a polynomial, the lowest coefficient first; of complex coefficients,
    those of the real and of the imaginary part.

    A root of even order comes out as two complex ones whose real parts are near it."""
    found: list[Fraction] = []
    for part in (context.re, context.im):
        found += map(_fraction, _roots(context, [part(one) for one in coefficients]))
    return found


def _roots(context: Any, coefficients: list[Any]) -> list[Any]:
    largest = max(map(abs, coefficients))
    trimmed = list(coefficients)
    while trimmed and abs(trimmed[-1]) <= largest * _SMALLEST:
        trimmed.pop()
    match trimmed:
        case [] | [_]:
            return []
        case [low, high]:
            return [-low / high]
        case [low, middle, high]:
            half, rest = -middle / (2 * high), (middle / (2 * high)) ** 2 - low / high
            return [half] if rest <= 0 else [half - context.sqrt(rest), half + context.sqrt(rest)]
    try:
        return [context.re(root) for root in context.polyroots(trimmed[::-1], maxsteps=60, extraprec=60)]
    except (context.NoConvergence, ZeroDivisionError):
        return []


def sign_changes(context: Any, value_at: Callable[[Fraction], Any]) -> list[Fraction]:
    """Where the real or the imaginary part of a function changes its sign, as far as a grid of magnitudes
    shows it. `value_at` gives None where there is no value."""
    values = [(at, value_at(at)) for at in _GRID]
    known = [(at, value) for at, value in values if value is not None]
    found: list[Fraction] = []
    for part in (context.re, context.im):
        for (low, at_low), (high, at_high) in pairwise(known):
            if part(at_low) * part(at_high) < 0:
                found.append(_halved(value_at, part, low, high, part(at_low)))
    return found


def _halved(
    value_at: Callable[[Fraction], Any], part: Callable[[Any], Any], low: Fraction, high: Fraction, sign: Any
) -> Fraction:
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        value = value_at(middle)
        if value is None:
            break
        low, high = (middle, high) if part(value) * sign > 0 else (low, middle)
    return (low + high) / 2


def _fraction(value: Any) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    size = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -size if sign else size
