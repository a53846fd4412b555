"""From an expression of sympy to our nodes; what has no node is Undecided. Imports sympy."""

from fractions import Fraction
from typing import Any

import sympy

from verifiers.math.arithmetic import Undecided
from verifiers.math.nodes import Call, Constant, Matrix, Node, Number, Power, Product, Sum, Symbol

SAME_NAME = (
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech csch asinh acosh atanh "
    "sqrt exp factorial binomial floor ceiling sign"
).split()
"""Functions that have the same name here and in sympy."""


def node_of(value: Any) -> Node:
    if isinstance(value, sympy.MatrixBase):
        return Matrix(tuple(tuple(node_of(entry) for entry in row) for row in value.tolist()))
    if value.is_Rational:
        return Number(Fraction(value.p, value.q))
    if value.is_Symbol:
        return Symbol(value.name)
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    if value.is_Add:
        return Sum(tuple(map(node_of, value.args)))
    if value.is_Mul:
        return Product(tuple(map(node_of, value.args)))
    if value.is_Pow:
        return Power(node_of(value.base), node_of(value.exp))
    if isinstance(value, sympy.exp):
        return Power(Constant("e"), node_of(value.args[0]))
    name = _NAMES.get(value.func)
    if name is None:
        raise Undecided(f"a value with {value.func}"[:200])
    return Call(name, tuple(map(node_of, value.args)))


_CONSTANTS: dict[Any, Node] = {
    sympy.pi: Constant("pi"),
    sympy.E: Constant("e"),
    sympy.I: Constant("i"),
    sympy.oo: Constant("infinity"),
    -sympy.oo: Product((Number(Fraction(-1)), Constant("infinity"))),
    sympy.EulerGamma: Call("euler_gamma", ()),
    sympy.Catalan: Call("catalan", ()),
}
_NAMES: dict[Any, str] = {
    **{getattr(sympy, name): name for name in SAME_NAME if name not in ("sqrt", "exp")},
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
