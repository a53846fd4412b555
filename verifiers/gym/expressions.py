"""Which answers may reach a scorer that evaluates them: sympy's `parse_expr` is Python's eval and more.

`__import__('os').system(...)` as an answer would run, and `setattr` could change what later answers score.
Plain formulas need numbers, operators, letters and a few functions; an answer with anything else is wrong
whatever its value."""

import builtins
import keyword
import re

_TOKEN = re.compile(r"\s+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z][A-Za-z0-9_]*|\*\*|[-+*/^(),!]")
_FUNCTIONS = frozenset(
    "pi E I sqrt cbrt exp log ln Abs abs sign erf gamma factorial "
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech csch "
    "asinh acosh atanh acoth asech acsch".split()
)


def is_plain_formula(text: str) -> bool:
    """Whether nothing but numbers, operators, variables and functions of mathematics is in it."""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or not _is_harmless(token.group()):
            return False
        at = token.end()
    return True


def _is_harmless(token: str) -> bool:
    if not token[0].isalpha() or token in _FUNCTIONS:
        return True
    # Where parse_expr runs, sympy is there, too.
    import sympy

    # An unknown name becomes a variable.
    return not (keyword.iskeyword(token) or hasattr(builtins, token) or hasattr(sympy, token))
