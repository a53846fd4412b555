"""The zeros of a function of one real letter, to a few digits: they say where to look, and prove nothing."""

from collections.abc import Callable
from itertools import pairwise

from flint import acb, acb_poly, arb, fmpq, fmpq_poly

from verifiers.math.numbers import Value

_GRID = tuple(
    sorted(sign * fmpq(3 * 10 ** (decade + 3), 1000) for sign in (1, -1) for decade in range(-3, 13))
    + [fmpq(0)]
)
_NUM_HALVINGS = 30


def real_parts_of_roots(polynomial: Value) -> list[fmpq]:
    """The real parts of the roots of a polynomial with coefficients that are balls; of complex ones, those of
    the real and of the imaginary part."""
    coefficients = polynomial.coeffs()
    parts = [[one.real for one in coefficients], [one.imag for one in coefficients]]
    return [
        root
        for part in (parts if isinstance(polynomial, acb_poly) else [coefficients])
        for root in _roots(part)
    ]


def _roots(coefficients: list[arb]) -> list[fmpq]:
    rounded = [_rounded(one) for one in coefficients]
    while rounded and rounded[-1] == 0:
        rounded.pop()
    if len(rounded) < 2:
        return []
    if len(rounded) == 2:
        return [-rounded[0] / rounded[1]]
    # Exact coefficients, so that a double root is one.
    return [fmpq(acb(root).real.mid().fmpq()) for root, _ in fmpq_poly(rounded).complex_roots()]


def _rounded(coefficient: arb) -> fmpq:
    if coefficient.contains(0):
        return fmpq(0)
    return coefficient.mid().fmpq()


def sign_changes(value_at: Callable[[fmpq], Value | None]) -> list[fmpq]:
    """Where the real or the imaginary part of a function changes its sign, as far as a grid of magnitudes
    shows it. `value_at` gives None where there is no value."""
    values = [(at, value_at(at)) for at in _GRID]
    known = [(at, acb(value)) for at, value in values if value is not None]
    found: list[fmpq] = []
    for part in (_real, _imaginary):
        for (low, at_low), (high, at_high) in pairwise(known):
            if part(at_low) * part(at_high) < 0:
                found.append(_halved(value_at, part, low, high, part(at_low)))
    return found


def _real(value: acb) -> arb:
    return value.real


def _imaginary(value: acb) -> arb:
    return value.imag


def _halved(
    value_at: Callable[[fmpq], Value | None],
    part: Callable[[acb], arb],
    low: fmpq,
    high: fmpq,
    sign: arb,
) -> fmpq:
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        value = value_at(middle)
        if value is None:
            break
        low, high = (middle, high) if part(acb(value)) * sign > 0 else (low, middle)
    return (low + high) / 2
