"""Sympy's part: the value of an operation as a node, and equalities that no number decides.

Sympy's expressions are built from our nodes alone, never from text, and only from what fits the bounds here
and in `verifiers.math.costs`. That bounds digits and terms, not the time: sympy may take any time and raise
anything. So it belongs in a worker that is killed when it is late, and whatever sympy raises is `Undecided`.
Importing this module imports sympy, which takes a third of a second: import it in the worker, after
everything cheap."""

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any, TypeVar

import sympy
from sympy.polys.matrices import DomainMatrix

from verifiers.math import nodes
from verifiers.math.arithmetic import Undecided
from verifiers.math.costs import require_affordable
from verifiers.math.nodes import Node
from verifiers.math.trees import free_symbols, infinity_sign, nesting, size, walk

MAX_NODES = 300
MAX_NODES_OF_EQUALITY = 60
MAX_NESTING = 5
MAX_BITS = 100_000
MAX_POLYNOMIAL_POWER = 60
MAX_MONOMIAL_POWER = 100_000
MAX_TERMS = 10**6
_MAX_SPLIT = 12
MAX_NUMERIC_SIDE = 60
MAX_SYMBOLIC_SIDE = 6
MAX_MATRIX_POWER = 64
_WHOLE_LETTERS = frozenset("ijklmnpNM")

Expression = Any
"""A sympy expression or matrix."""

_SAME_NAME = (
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech csch asinh acosh atanh "
    "sqrt exp factorial binomial floor ceiling sign"
).split()
"""Functions that have the same name here and in sympy."""


_T = TypeVar("_T")


def value_of(node: Node) -> Node:
    """The value of an operation, a determinant or a matrix expression, as a node without them.

    Raises Undecided when there is none, or sympy does not find it."""
    return _guarded(lambda: _node_of(_Builder(node).expression(node)))


def proves_equal(one: Node, other: Node) -> bool:
    """Whether sympy proves that two expressions without operations are equal, for all real letters."""
    if size(one) + size(other) > MAX_NODES_OF_EQUALITY:
        return False
    # Sympy's time grows fast with functions inside functions.
    if max(nesting(one), nesting(other)) > MAX_NESTING:
        return False
    try:
        return _guarded(lambda: _is_zero(_difference(one, other)))
    except Undecided:
        return False


def _difference(one: Node, other: Node) -> Expression:
    builder = _Builder(nodes.Sum((one, other)), allow_operations=False)
    sides = [builder.expression(one), builder.expression(other)]
    if any(side.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo) for side in sides):
        raise Undecided("a value that is not finite")
    return sides[0] - sides[1]


def _is_zero(difference: Expression) -> bool:
    return bool(difference == 0 or sympy.simplify(difference) == 0)


def derivative_of(antiderivative: Node, letter: str) -> Node:
    """The derivative by `letter` of an expression without operations. Raises Undecided."""
    return _guarded(
        lambda: _node_of(_Builder(antiderivative, allow_operations=False).slope(antiderivative, letter, 1))
    )


def _guarded(ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except (Undecided, MemoryError):
        raise
    except Exception as error:  # The boundary to sympy, which raises whatever its parts raise.
        raise Undecided(f"sympy raised {type(error).__name__}: {error}"[:200]) from error


# From sympy to our nodes


def _node_of(value: Any) -> Node:
    if isinstance(value, sympy.MatrixBase):
        return nodes.Matrix(tuple(tuple(_node_of(entry) for entry in row) for row in value.tolist()))
    if value.is_Rational:
        return nodes.Number(Fraction(value.p, value.q))
    if value.is_Symbol:
        return nodes.Symbol(value.name)
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    if value.is_Add:
        return nodes.Sum(tuple(map(_node_of, value.args)))
    if value.is_Mul:
        return nodes.Product(tuple(map(_node_of, value.args)))
    if value.is_Pow:
        return nodes.Power(_node_of(value.base), _node_of(value.exp))
    if isinstance(value, sympy.exp):
        return nodes.Power(nodes.Constant("e"), _node_of(value.args[0]))
    name = _NAMES.get(value.func)
    if name is None:
        raise Undecided(f"a value with {value.func}"[:200])
    return nodes.FunctionCall(name, tuple(map(_node_of, value.args)))


_CONSTANTS: dict[Any, Node] = {
    sympy.pi: nodes.Constant("pi"),
    sympy.E: nodes.Constant("e"),
    sympy.I: nodes.Constant("i"),
    sympy.oo: nodes.Constant("infinity"),
    -sympy.oo: nodes.Product((nodes.Number(Fraction(-1)), nodes.Constant("infinity"))),
    sympy.EulerGamma: nodes.FunctionCall("euler_gamma", ()),
    sympy.Catalan: nodes.FunctionCall("catalan", ()),
}
_NAMES: dict[Any, str] = {
    **{getattr(sympy, name): name for name in _SAME_NAME if name not in ("sqrt", "exp")},
    **{
        getattr(sympy, name): name.casefold()
        for name in ("gamma", "zeta", "erf", "erfc", "erfi", "digamma", "polylog", "Si", "Ci", "Ei", "li")
    },
    sympy.Abs: "abs",
    sympy.log: "ln",
    sympy.factorial2: "double_factorial",
    sympy.Max: "max",
    sympy.Min: "min",
}


# From our nodes to sympy


class _Builder:
    def __init__(self, root: Node, *, allow_operations: bool = True) -> None:
        if size(root) > (MAX_NODES if free_symbols(root) else 20 * MAX_NODES):
            raise Undecided("an expression of too many parts")
        require_affordable(root)
        self._allow_operations = allow_operations
        # Ends and parameters of integrals and series are lengths and rates far more often than not.
        positive = any(isinstance(item, nodes.Operation) and item.bound for item in walk(root)) or None
        series = [item for item in walk(root) if isinstance(item, nodes.Operation)]
        ends = [part for item in series if item.name in ("sum", "product") for part in item.parts]
        whole = {name for part in ends for name in free_symbols(part)}
        self._symbols = {
            name: sympy.Symbol(
                name, positive=positive, **({"integer": True} if name in whole else {"real": True})
            )
            for name in free_symbols(root)
        }
        self._bound: dict[int, Expression] = {}

    def expression(self, node: Node) -> Expression:
        match node:
            case nodes.Number(value):
                if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
                    raise Undecided("a number of too many digits")
                return sympy.Rational(value.numerator, value.denominator)
            case nodes.Symbol(name):
                return self._symbols[name]
            case nodes.Bound(height):
                return self._bound[height]
            case nodes.Constant(name):
                return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}[name]
            case nodes.Sum(terms):
                return reduce(operator.add, list(map(self.expression, terms)))
            case nodes.Product(factors):
                return reduce(operator.mul, list(map(self.expression, factors)))
            case nodes.Quotient(top, bottom):
                return self.expression(top) / self.expression(bottom)
            case nodes.Power():
                return self._power(node)
            case nodes.Percent(hundredths):
                return self.expression(hundredths) / 100
            case nodes.Degrees(degrees):
                return self.expression(degrees) * sympy.pi / 180
            case nodes.FunctionCall():
                return self._call(node)
            case nodes.Matrix():
                return self._matrix(node)
            case nodes.Operation() if self._allow_operations:
                return self._operation(node)
        raise Undecided(f"a {type(node).__name__}")

    def _power(self, node: nodes.Power) -> Expression:
        base = self.expression(node.base)
        if isinstance(base, sympy.MatrixBase):
            return self._matrix_power(base, node.exponent)
        exponent = self.expression(node.exponent)
        if exponent.is_Rational:
            size = abs(exponent.p)
            if base.is_Rational and size * (base.p.bit_length() + base.q.bit_length()) > MAX_BITS:
                raise Undecided("a power of too many digits")
            if not base.is_number and size > (MAX_MONOMIAL_POWER if base.is_Symbol else MAX_POLYNOMIAL_POWER):
                raise Undecided("a power of too many terms")
            if size > MAX_BITS or exponent.q > MAX_BITS:
                raise Undecided("an exponent of too many digits")
        return base**exponent

    def _matrix_power(self, base: Expression, exponent: Node) -> Expression:
        if exponent == nodes.Symbol("T"):
            return base.T
        value = exponent.value if isinstance(exponent, nodes.Number) else Fraction(1, 2)
        if value.denominator != 1 or abs(value) > MAX_MATRIX_POWER:
            raise Undecided("such a power of a matrix")
        if base.free_symbols and abs(value) > 3:
            raise Undecided("a high power of a matrix with letters")
        return base ** int(value)

    def _matrix(self, node: nodes.Matrix) -> Expression:
        entries = [[self.expression(entry) for entry in row] for row in node.rows]
        matrix = sympy.ImmutableDenseMatrix(entries)
        rational = all(entry.is_Rational for entry in matrix)
        if max(matrix.shape) > (MAX_NUMERIC_SIDE if rational else MAX_SYMBOLIC_SIDE):
            raise Undecided(f"a matrix of {matrix.shape[0]} times {matrix.shape[1]}")
        return matrix

    def _call(self, node: nodes.FunctionCall) -> Expression:
        arguments = [self.expression(argument) for argument in node.arguments]
        if node.name in ("det", "abs") and isinstance(arguments[0], sympy.MatrixBase):
            if arguments[0].shape[0] != arguments[0].shape[1]:
                raise Undecided("the determinant of a matrix that is not square")
            matrix = DomainMatrix.from_Matrix(arguments[0])
            return matrix.domain.to_sympy(matrix.det())
        if not node.known:
            return sympy.Function(node.name)(*arguments)
        function = _CALLS.get(node.name)
        if function is None:
            raise Undecided(f"the function {node.name}")
        return function(*arguments)

    # Operations

    def _operation(self, node: nodes.Operation) -> Expression:
        if node.name == "derivative":
            name, order = node.parts
            assert isinstance(name, nodes.Symbol) and isinstance(order, nodes.Number)
            names = free_symbols(node.body)
            if names and name.name not in names:
                # The y of d/dx y may depend on x.
                raise Undecided(f"a derivative by {name.name} of an expression without it")
            return self.slope(node.body, name.name, int(order.value))
        if node.bound is None:
            raise Undecided("an antiderivative inside an expression")
        letter = self._fresh(node)
        parts = [self.expression(part) for part in node.parts]
        outer = self._bound.get(node.bound.height)
        self._bound[node.bound.height] = letter
        body = self.expression(node.body)
        if outer is not None:
            self._bound[node.bound.height] = outer
        value = _OPERATIONS[node.name](body, letter, *parts)
        if value.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit) or letter in value.free_symbols:
            raise Undecided(f"sympy finds no value of the {node.name}")
        return value

    def _fresh(self, node: nodes.Operation) -> Expression:
        is_whole = node.name in ("sum", "product") or (
            node.name == "limit" and node.letter in _WHOLE_LETTERS and infinity_sign(node.parts[0]) == 1
        )
        if node.name == "limit":
            return sympy.Dummy("n", integer=True, positive=True) if is_whole else sympy.Dummy("x", real=True)
        is_positive = (
            True
            if isinstance(node.parts[0], nodes.Number) and node.parts[0].value >= (1 if is_whole else 0)
            else None
        )
        if is_whole:
            return sympy.Dummy("n", integer=True, positive=is_positive)
        return sympy.Dummy("x", real=True, positive=is_positive)

    def slope(self, body: Node, letter: str, order: int) -> Expression:
        variable = self._symbols.setdefault(letter, sympy.Symbol(letter, real=True))
        return sympy.diff(self.expression(body), variable, order)


def _series(body: Expression, letter: Expression, low: Expression, high: Expression) -> Expression:
    _bounded_terms(body, letter, low, high)
    terms = sympy.Add.make_args(sympy.expand(body)) if high == sympy.oo else ()
    if 1 < len(terms) <= _MAX_SPLIT:
        # Several times faster than as a whole; right only when each part converges.
        values = [sympy.Sum(term, (letter, low, high)).doit() for term in terms]
        if all(value.is_finite and not value.has(sympy.Sum, sympy.Piecewise) for value in values):
            return sympy.Add(*values)
    return _without_conditions(sympy.Sum(body, (letter, low, high)).doit())


def _product(body: Expression, letter: Expression, low: Expression, high: Expression) -> Expression:
    _bounded_terms(body, letter, low, high)
    if high != sympy.oo:
        return sympy.gammasimp(sympy.product(body, (letter, low, high)))
    last = sympy.Dummy("n", integer=True, positive=True)
    partial = sympy.gammasimp(sympy.product(body, (letter, low, last)))
    return _limit(partial, last, sympy.oo, sympy.Integer(0))


def _bounded_terms(body: Expression, letter: Expression, low: Expression, high: Expression) -> None:
    """Between two numbers sympy may build each term, or powers as high as the last one."""
    if low in (sympy.oo, -sympy.oo) or high == -sympy.oo:
        raise Undecided("a series that begins at infinity")
    if low.is_number and not low.is_Integer or (high.is_number and not (high.is_Integer or high == sympy.oo)):
        raise Undecided("a series between numbers that are not whole")
    if low.is_Integer and high.is_Integer and high - low > MAX_TERMS and not body.is_polynomial(letter):
        raise Undecided("a series of too many terms")


def _limit(body: Expression, letter: Expression, point: Expression, side: Expression) -> Expression:
    direction = {1: "+", -1: "-", 0: "+-"}[int(side)] if point.is_finite is not False else "-"
    value = sympy.limit(body, letter, point, direction)
    if value.has(sympy.AccumBounds, sympy.zoo, sympy.nan):
        raise Undecided("a limit that does not exist")
    return value


def _without_conditions(value: Expression) -> Expression:
    """The value for the parameters that the writer means: where it converges, and not at single points."""
    if not value.has(sympy.Piecewise):
        return value
    folded = sympy.piecewise_fold(value)
    if not isinstance(folded, sympy.Piecewise):
        return value
    for expression, condition in folded.args:
        is_value = not expression.has(sympy.Integral, sympy.Sum, sympy.Product)
        if is_value and not isinstance(condition, sympy.Equality):
            return expression
    raise Undecided("a value with conditions only")


_OPERATIONS: dict[str, Callable[..., Expression]] = {
    "integral": lambda body, letter, low, high: _without_conditions(
        sympy.integrate(body, (letter, low, high), conds="none")
    ),
    "sum": _series,
    "product": _product,
    "limit": _limit,
}


def _root(radicand: Expression, degree: Expression) -> Expression:
    if degree.is_Integer and degree > 0 and degree % 2 and radicand.is_nonnegative is not True:
        # The real root of a negative number, as our own evaluation has it.
        if radicand.is_negative:
            return -((-radicand) ** (1 / degree))
        raise Undecided("an odd root of an expression of unknown sign")
    return radicand ** (1 / degree)


_CALLS: dict[str, Callable[..., Expression]] = {
    **{name: getattr(sympy, name) for name in _SAME_NAME},
    "abs": sympy.Abs,
    "ln": sympy.log,
    "log": lambda argument, base=10: sympy.log(argument) / sympy.log(base),
    "cbrt": lambda argument: _root(argument, sympy.Integer(3)),
    "root": _root,
    "double_factorial": sympy.factorial2,
    "gcd": sympy.gcd,
    "lcm": sympy.lcm,
    "max": sympy.Max,
    "min": sympy.Min,
}
