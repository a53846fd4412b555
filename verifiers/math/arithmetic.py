"""The value of a tree: an exact fraction as long as it lasts, else a ball that encloses it (Arb, by
python-flint). Owns every budget of the arithmetic.

A tree becomes a function once and is evaluated at many places. Numbers are fmpq, arb or acb; letters of
vectors and matrices are acb_mat, so that their products keep their order. Nothing here runs long: fractions
above MAX_BITS are refused or become balls, and balls have a fixed precision. Arb's precision is a global, so
one thread evaluates at a time."""

import threading
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from flint import acb, acb_mat, arb, ctx, fmpq, nmod

from verifiers.math import nodes
from verifiers.math.nodes import Node
from verifiers.math.numbers import (
    EXACT_FUNCTIONS,
    FUNCTIONS,
    MAX_BITS,
    NotExact,
    NotNumber,
    OutOfBudget,
    Place,
    Value,
    power,
)
from verifiers.math.quadrature import integral
from verifiers.math.trees import infinity_sign

_BITS_PER_DIGIT = 3.3219
_GUARD_BITS = 56
_MAX_EXTRA_BITS = 3_000
_TRANSPOSED = nodes.Symbol("T")

Evaluate = Callable[[Place], Value]


class Undecided(Exception):
    """Neither we nor sympy find a value: out of the bounds, beyond the means, or there is none."""


def exact_value(node: Node, values: Mapping[str, Fraction] = {}) -> Fraction:
    """The value as a fraction, with `values` for the symbols. Raises NotExact or NotNumber."""
    if type(node) is nodes.Number:
        return node.value
    place = Place({name: fraction(value) for name, value in values.items()}, is_exact=True)
    value = value_at(compiled(node), place)
    return Fraction(int(value.p), int(value.q))


def exact_or_none(node: Node) -> Fraction | None:
    try:
        return exact_value(node)
    except (NotExact, NotNumber):
        return None


def numeric_value(node: Node, values: Mapping[str, Fraction] = {}, *, digits: int = 40) -> Value:
    """The value, exact or as a ball of `digits` digits. Raises NotNumber."""
    evaluate, given = compiled(node), {name: fraction(value) for name, value in values.items()}
    wanted = int(digits * _BITS_PER_DIGIT)
    for extra in (_GUARD_BITS, _GUARD_BITS + wanted, _MAX_EXTRA_BITS + wanted):
        with precision(wanted + extra):
            value = value_at(evaluate, Place(given))
            if accuracy(value) >= wanted:
                return value
    raise OutOfBudget("a value that cancels to nothing")


def real_fraction(node: Node, values: Mapping[str, Fraction] = {}, *, digits: int = 60) -> Fraction:
    """The value of a real expression, to `digits` digits when it is irrational. Raises NotNumber."""
    value = numeric_value(node, values, digits=digits)
    if type(value) is acb and value.imag == 0:
        value = value.real
    if type(value) is arb:
        value = value.mid().fmpq() if abs(value) < 1 << 40_000 else None
    if type(value) is not fmpq:
        raise NotNumber("not a real number of ordinary size")
    return Fraction(int(value.p), int(value.q))


def fraction(value: Fraction) -> fmpq:
    top, bottom = value.as_integer_ratio()
    return fmpq(top) if bottom == 1 else fmpq(top, bottom)


_PRECISION = threading.RLock()


class precision:
    """Sets the precision of Arb, for this thread alone. Not by contextlib: each point needs one."""

    __slots__ = ("_before", "_bits")

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def __enter__(self) -> None:
        _PRECISION.acquire()
        self._before, ctx.prec = ctx.prec, self._bits

    def __exit__(self, *_: object) -> None:
        ctx.prec = self._before
        _PRECISION.release()


def value_at(evaluate: Evaluate, place: Place) -> Value:
    """The value at one place. Raises NotNumber, OutOfBudget when a ball is unbounded, NotExact when exact."""
    try:
        value = evaluate(place)
    except (
        ZeroDivisionError,
        ValueError,
        OverflowError,
        ArithmeticError,
        TypeError,
        AttributeError,
    ) as error:
        raise NotNumber(str(error)) from error
    if type(value) is not fmpq and not is_finite(value):
        raise OutOfBudget("a value without bounds")
    return value


def is_finite(value: Value) -> bool:
    if type(value) is acb_mat:
        return all(entry.is_finite() for entry in value.entries())
    return bool(value.is_finite())


def accuracy(value: Value) -> int:
    """Bits of the value that its ball guarantees; of one that may be 0, bits after the point."""
    if type(value) is fmpq:
        return MAX_BITS
    if type(value) is acb_mat:
        return min(map(accuracy, value.entries()))
    return int(value.rel_one_accuracy_bits() if value.contains(0) else value.rel_accuracy_bits())


def residue(node: Node, values: Mapping[str, nmod], modulus: int) -> nmod:
    """The value of a rational expression modulo a prime. Raises NotExact for any other, NotNumber for a
    division by 0."""
    match node:
        case nodes.Number(value):
            top, bottom = nmod(value.numerator, modulus), value.denominator
            return top if bottom == 1 else _divided(top, nmod(bottom, modulus))
        case nodes.Symbol(name) if name in values:
            return values[name]
        case nodes.Sum((first, *rest)):
            total = residue(first, values, modulus)
            for term in rest:
                total += residue(term, values, modulus)
            return total
        case nodes.Product((first, *rest)):
            product = residue(first, values, modulus)
            for factor in rest:
                product *= residue(factor, values, modulus)
            return product
        case nodes.Quotient(top, bottom):
            return _divided(residue(top, values, modulus), residue(bottom, values, modulus))
        case nodes.Power(base, exponent):
            power_of = exact_value(exponent)
            if power_of.denominator != 1:
                raise NotExact
            below = residue(base, values, modulus)
            if below == 0 and power_of <= 0:
                raise NotNumber("0 to a power that is not positive")
            return below ** (int(power_of) % (modulus - 1))
        case nodes.Percent(value):
            return _divided(residue(value, values, modulus), nmod(100, modulus))
    raise NotExact


def _divided(top: nmod, bottom: nmod) -> nmod:
    if bottom == 0:
        raise NotNumber("a division by 0")
    return top / bottom


# From a tree to a function


def compiled(node: Node) -> Evaluate:
    """The function from a place to the value of the tree there."""
    compile_one = _COMPILERS.get(type(node))
    if compile_one is None:
        return _without_value(node)
    return compile_one(node)


def _without_value(node: Node) -> Evaluate:
    def evaluate(place: Place) -> Value:
        if place.is_exact:
            raise NotExact
        raise NotNumber(f"a {type(node).__name__} has no value")

    return evaluate


def _number(node: nodes.Number) -> Evaluate:
    value = fraction(node.value)
    return lambda place: value


def _symbol(node: nodes.Symbol) -> Evaluate:
    name = node.name

    def evaluate(place: Place) -> Value:
        value = place.values.get(name)
        if value is None:
            if place.is_exact:
                raise NotExact
            raise NotNumber(f"no value for {name}")
        return value

    return evaluate


def _sum(node: nodes.Sum) -> Evaluate:
    parts = tuple(map(compiled, node.terms))

    def evaluate(place: Place) -> Value:
        values = [part(place) for part in parts]
        total = sum(values[1:], values[0])
        if type(total) is fmpq:
            return place.checked(total)
        if type(total) is acb_mat and any(type(value) is not acb_mat for value in values):
            raise NotNumber("a matrix plus a number")
        if place.notes_spread:
            place.note_spread(values)
        return total

    return evaluate


def _product(node: nodes.Product) -> Evaluate:
    first, *rest = map(compiled, node.factors)

    def evaluate(place: Place) -> Value:
        result = first(place)
        for factor in rest:
            result = result * factor(place)
            if type(result) is fmpq:
                result = place.checked(result)
        return result

    return evaluate


def _quotient(node: nodes.Quotient) -> Evaluate:
    top, bottom = compiled(node.top), compiled(node.bottom)

    def evaluate(place: Place) -> Value:
        over, under = top(place), bottom(place)
        if under == 0:
            raise NotNumber("a division by 0")
        result = over * (1 / under)
        return place.checked(result) if type(result) is fmpq else result

    return evaluate


def _power(node: nodes.Power) -> Evaluate:
    base, exponent = compiled(node.base), compiled(node.exponent)
    if node.base == nodes.Constant("e"):
        exponential = FUNCTIONS["exp"]
        return lambda place: exponential(place, exponent(place))
    is_transposed = node.exponent == _TRANSPOSED

    def evaluate(place: Place) -> Value:
        below = base(place)
        if is_transposed and type(below) is acb_mat:
            return below.transpose()
        return power(place, below, exponent(place))

    return evaluate


def _remainder(node: nodes.Modulo) -> Evaluate:
    value, modulus = compiled(node.value), compiled(node.modulus)

    def evaluate(place: Place) -> Value:
        number, divisor = value(place), modulus(place)
        if type(number) is not fmpq or type(divisor) is not fmpq:
            raise NotNumber("a remainder of what is not rational")
        return number - divisor * fmpq((number / divisor).floor())

    return evaluate


def _constant(node: nodes.Constant) -> Evaluate:
    name = node.name
    make = {"pi": arb.pi, "e": arb.const_e, "i": lambda: acb(0, 1)}.get(name)

    def evaluate(place: Place) -> Value:
        if make is None:
            raise NotNumber("infinity has no value")
        if place.is_exact:
            raise NotExact
        return make()

    return evaluate


def _percent(node: nodes.Percent) -> Evaluate:
    inner = compiled(node.value)
    return lambda place: inner(place) / 100


def _degrees(node: nodes.Degrees) -> Evaluate:
    inner = compiled(node.value)

    def evaluate(place: Place) -> Value:
        if place.is_exact:
            raise NotExact
        return inner(place) * arb.pi() / 180

    return evaluate


def _based(node: nodes.Based) -> Evaluate:
    def evaluate(place: Place) -> Value:
        try:
            return fmpq(int(node.digits, node.base))
        except ValueError as error:
            raise NotNumber(f"{node.digits} is no number in base {node.base}") from error

    return evaluate


def _matrix(node: nodes.Matrix) -> Evaluate:
    rows = [list(map(compiled, row)) for row in node.rows]

    def evaluate(place: Place) -> Value:
        if place.is_exact:
            raise NotExact
        return acb_mat([[entry(place) for entry in row] for row in rows])

    return evaluate


def _call(node: nodes.FunctionCall) -> Evaluate:
    arguments = tuple(map(compiled, node.arguments))
    if not node.known:
        return _own_function(node, arguments)
    function, exact = FUNCTIONS.get(node.name), EXACT_FUNCTIONS.get(node.name)
    if exact is None and function is None:
        return _without_value(node)

    def evaluate(place: Place) -> Value:
        if exact is None and place.is_exact:
            raise NotExact
        values = [argument(place) for argument in arguments]
        if exact is not None and all(type(value) is fmpq for value in values):
            found = exact(*values)
            if found is not None:
                return place.checked(found)
        if place.is_exact:
            raise NotExact
        if function is None:
            raise NotNumber(f"the {node.name} of what is not whole")
        return function(place, *values)

    return evaluate


def _own_function(node: nodes.FunctionCall, arguments: tuple[Evaluate, ...]) -> Evaluate:
    """The writer's own f: some fixed generic function, so that f(x+1) = f(1+x) but f(x) != f(y)."""
    seed = zlib.crc32(f"{node.name}/{len(arguments)}".encode())

    def evaluate(place: Place) -> Value:
        if place.is_exact:
            raise NotExact
        total = arb(fmpq(seed % 99_991 + 1, 99_989))
        for position, argument in enumerate(arguments, start=1):
            weight = fmpq(seed % (89 + position) + 7, 53)
            total = total + place.ball(argument(place) * weight + position).sin() * (position + 1)
        return total

    return evaluate


def _bound(node: nodes.Bound) -> Evaluate:
    def evaluate(place: Place) -> Value:
        if node.height not in place.bound:
            raise NotExact if place.is_exact else NotNumber("a letter of an operation outside of it")
        return place.bound[node.height]

    return evaluate


def _operation(node: nodes.Operation) -> Evaluate:
    if node.name != "integral" or node.bound is None:
        return _without_value(node)
    ends = [None if infinity_sign(part) else compiled(part) for part in node.parts]
    body, height = compiled(node.body), node.bound.height

    def evaluate(place: Place) -> Value:
        if place.is_exact:
            raise NotExact
        if place.bound:
            raise NotNumber("an integral inside an integral")
        limits = [None if end is None else place.ball(end(place)) for end in ends]
        return integral(node, limits, lambda point: body(Place(place.values, {height: point})), ctx.prec)

    return evaluate


_COMPILERS: dict[type, Callable[[Any], Evaluate]] = {
    nodes.Number: _number,
    nodes.Symbol: _symbol,
    nodes.Sum: _sum,
    nodes.Product: _product,
    nodes.Quotient: _quotient,
    nodes.Power: _power,
    nodes.Constant: _constant,
    nodes.Percent: _percent,
    nodes.Degrees: _degrees,
    nodes.Based: _based,
    nodes.Matrix: _matrix,
    nodes.Modulo: _remainder,
    nodes.FunctionCall: _call,
    nodes.Bound: _bound,
    nodes.Operation: _operation,
}
