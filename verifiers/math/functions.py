"""The known functions by their names in the tree. Each takes the numeric evaluation, which has the context
and the bounds, and the arguments."""

from collections.abc import Callable
from typing import Any

_MAX_ARGUMENT = 10**4


def _plain(name: str) -> Callable[..., Any]:
    return lambda numeric, argument: getattr(numeric.context, name)(numeric.bounded(argument))


def _branching(name: str) -> Callable[..., Any]:
    """A function with branch points at 1 and -1, beside which it magnifies errors."""

    def value(numeric: Any, argument: Any) -> Any:
        numeric.note_branch_point(argument)
        return getattr(numeric.context, name)(numeric.bounded(argument))

    return value


def _hyperbolic(name: str) -> Callable[..., Any]:
    return lambda numeric, argument: getattr(numeric.context, name)(numeric.bounded(argument, 10**5))


def _bounded(name: str) -> Callable[..., Any]:
    return lambda numeric, *arguments: getattr(numeric.context, name)(
        *(numeric.bounded(argument, _MAX_ARGUMENT) for argument in arguments)
    )


_SPECIAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Sympy's names in lower case; no answer can write them.
    **{
        name: _bounded(name)
        for name in ("gamma", "zeta", "erf", "erfc", "erfi", "digamma", "polylog", "ei", "si", "ci", "li")
    },
    "euler_gamma": lambda numeric: +numeric.context.euler,
    "catalan": lambda numeric: +numeric.context.catalan,
}

NUMERIC_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: _plain(name)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "atan", "acot", "asinh")
    },
    **{name: _branching(name) for name in ("asin", "acos", "asec", "acsc", "acosh", "atanh")},
    **{name: _hyperbolic(name) for name in ("sinh", "cosh", "tanh", "coth", "sech", "csch")},
    "sqrt": lambda numeric, argument: numeric.context.sqrt(argument),
    "cbrt": lambda numeric, argument: numeric.root(argument, numeric.context.mpf(3)),
    "root": lambda numeric, *arguments: numeric.root(*arguments),
    "ln": lambda numeric, argument: numeric.context.log(argument),
    "log": lambda numeric, *arguments: numeric.log(*arguments),
    "exp": lambda numeric, *arguments: numeric.exp(*arguments),
    "abs": lambda numeric, argument: abs(argument),
    "factorial": lambda numeric, *arguments: numeric.factorial(*arguments),
    "double_factorial": lambda numeric, *arguments: numeric.double_factorial(*arguments),
    "binomial": lambda numeric, *arguments: numeric.binomial(*arguments),
    "floor": lambda numeric, argument: numeric.rounded(argument, "floor"),
    "ceiling": lambda numeric, argument: numeric.rounded(argument, "ceil"),
    "max": lambda numeric, *arguments: numeric.extreme(max, arguments),
    "min": lambda numeric, *arguments: numeric.extreme(min, arguments),
    "real": lambda numeric, argument: numeric.context.re(argument),
    "imaginary": lambda numeric, argument: numeric.context.im(argument),
    "argument": lambda numeric, argument: numeric.context.arg(argument),
    "sign": lambda numeric, argument: numeric.context.sign(numeric.real(argument)),
    **_SPECIAL_FUNCTIONS,
}  # fmt: skip
