"""The tool `calculator`: exact arithmetic of bounded size."""

import ast
import operator
from fractions import Fraction

MAX_DIGITS = 400
_TWO = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Works out an arithmetic expression, such as 12 * (3 + 4).

    Args:
        expression: Numbers, parentheses and + - * / // % **.
    """
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression[:80]!r} is no arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _TWO:
            return _bounded(Fraction(_TWO[type(node.op)](left, right)))
    raise ValueError("only numbers, parentheses and + - * / // % ** are allowed")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be a whole number")
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator)))
    if abs(exponent) * digits > 2 * MAX_DIGITS:
        raise ValueError(f"the result would have more than {MAX_DIGITS} digits")
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    # Bits, because writing a huge number out takes long.
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 4 * MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return value
