r"""Operations on an expression in one letter: \int, \sum, \prod, \lim and \frac{d}{dx}, as nodes.

Reads only; `settle` says what they are worth. What a sign applies to, as it is meant in an answer: a factor
chain (\sum k + 1 is one more than the sum), and what follows as long as it still holds the letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from verifiers.math.nodes import Bound, Constant, Node, Number, Operation, Relation, Sum, Symbol
from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import FRACTIONS, GREEK

if TYPE_CHECKING:
    from verifiers.math.primary import PrimaryParser

__all__ = ["CALCULUS", "read_derivative", "replaced"]

_ARROWS = (r"\to", r"\rightarrow", r"\longrightarrow")
_MAX_ORDER = 10
_INFINITY = Constant("infinity")

_T = TypeVar("_T")


def replaced(node: Any, old: Node, new: Node) -> Any:
    """The tree with every `old` in it changed to `new`."""
    if node == old:
        return new
    if isinstance(node, tuple):
        return tuple(replaced(item, old, new) for item in node)
    if hasattr(node, "__dataclass_fields__"):
        return replace(
            node, **{field.name: replaced(getattr(node, field.name), old, new) for field in fields(node)}
        )
    return node


def _height(node: Any) -> int:
    """The height of the highest operation in the tree that binds a letter; 0 without one."""
    if isinstance(node, tuple):
        return max(map(_height, node), default=0)
    if isinstance(node, Bound):
        return node.height
    if hasattr(node, "__dataclass_fields__"):
        return max((_height(getattr(node, field.name)) for field in fields(node)), default=0)
    return 0


def _contains(node: Any, wanted: Node) -> bool:
    if node == wanted:
        return True
    if isinstance(node, tuple):
        return any(_contains(item, wanted) for item in node)
    return hasattr(node, "__dataclass_fields__") and any(
        _contains(getattr(node, field.name), wanted) for field in fields(node)
    )


def _bind(name: str, body: Node, letter: str, parts: tuple[Node, ...]) -> Operation:
    bound = Bound(_height(body) + 1)
    return Operation(name, replaced(body, Symbol(letter), bound), parts, bound, letter)


# Which letter


def _letter(parser: PrimaryParser, operation: str) -> str:
    """Take the letter that stands here, without reading it as a constant."""
    token = parser.here
    if token.kind == "symbol":
        parser.advance()
        name = token.value
    elif token.kind == "command" and token.value[1:] in GREEK:
        parser.advance()
        name = GREEK[token.value[1:]]
    else:
        raise Unreadable(f"expected the letter of the {operation}, found {token.value or 'the end'!r}")
    if parser.is_operator("_"):
        raise Unreadable(f"a letter with a subscript in the {operation}")
    return name


def _with_letter(parser: PrimaryParser, letter: str, read: Callable[[], _T]) -> _T:
    """What `read` reads where `letter` is only a letter, i and e too."""
    outer = parser.index_letters
    parser.index_letters = (*outer, letter)
    result = read()
    parser.index_letters = outer
    return result


def _body(parser: PrimaryParser, letter: str) -> tuple[Node, tuple[Node, ...]]:
    """What the operation applies to, and the terms after it that it does not apply to."""
    start, tokens = parser.at, list(parser.tokens)
    sign = parser.is_operator("-")
    if sign:
        parser.advance()
    body = parser.term()
    body = parser.negative(body) if sign else body
    if not (parser.is_operator("+") or parser.is_operator("-")):
        return body, ()
    after, left = parser.at, list(parser.tokens)
    parser.tokens[:] = tokens
    _go_to(parser, start)
    whole = parser.sum()
    terms = whole.terms if isinstance(whole, Sum) else (whole,)
    last = max((at for at, term in enumerate(terms) if _contains(term, Symbol(letter))), default=0)
    if last == 0:
        parser.tokens[:] = left
        _go_to(parser, after)
        return body, ()
    return Sum(terms[: last + 1]), terms[last + 1 :]


def _go_to(parser: PrimaryParser, at: int) -> None:
    parser.at = at - 1
    parser.advance()


def _and_rest(operation: Operation, rest: tuple[Node, ...]) -> Node:
    return Sum((operation, *rest)) if rest else operation


# Sums and products


def _series(parser: PrimaryParser) -> Node:
    r"""\sum_{k=1}^{n}, \prod_{k=1}^{n}, \sum_{k \ge 1}, \sum_{1 \le k \le n}."""
    name = {r"\sum": "sum", r"\prod": "product"}[parser.advance().value]
    parser.expect("_")
    parser.expect("{")
    letter = _letter_of_series(parser, name)
    low, high = _with_letter(parser, letter, lambda: _range(parser, letter, name))
    parser.expect("}")
    if parser.is_operator("^"):
        if high is not None:
            raise Unreadable(f"a {name} with two upper ends")
        parser.advance()
        high = parser.argument()
    if high is None:
        raise Unreadable(f"a {name} without an upper end")
    body, rest = _with_letter(parser, letter, lambda: _body(parser, letter))
    return _and_rest(_bind(name, body, letter, (low, high)), rest)


def _letter_of_series(parser: PrimaryParser, name: str) -> str:
    """The letter that runs; the parser stays at the beginning of the subscript."""
    start = parser.at
    if parser.here.kind == "number":
        # 1 \le k \le n
        parser.advance()
        parser.advance()
    letter = _letter(parser, name)
    _go_to(parser, start)
    return letter


def _range(parser: PrimaryParser, letter: str, name: str) -> tuple[Node, Node | None]:
    node = parser.group(parser.relation)
    if isinstance(node, Relation):
        operators, sides = node.operators, node.sides
        if operators == ("=",) and sides[0] == Symbol(letter):
            return sides[1], None
        if operators == (">=",) and sides[0] == Symbol(letter):
            return sides[1], _INFINITY
        if operators == ("<=", "<=") and sides[1] == Symbol(letter):
            return sides[0], sides[2]
    raise Unreadable(f"a {name} over something else than a letter from one number to another")


# Limits


def _limit(parser: PrimaryParser) -> Node:
    r"""\lim_{x \to a}, \lim_{x \to a^+}."""
    parser.advance()
    parser.expect("_")
    parser.expect("{")
    letter = _letter(parser, "limit")
    if parser.here.value in _ARROWS:
        parser.advance()
    elif parser.is_operator("-") and parser.peek().value == ">":
        parser.advance()
        parser.advance()
    else:
        raise Unreadable(f"expected \\to after the letter of a limit, found {parser.here.value!r}")
    side = _side(parser)
    point = parser.group(parser.sum)
    parser.expect("}")
    body, rest = _with_letter(parser, letter, lambda: _body(parser, letter))
    return _and_rest(_bind("limit", body, letter, (point, Number(Fraction(side)))), rest)


def _side(parser: PrimaryParser) -> int:
    """1 or -1 when the subscript ends in ^+ or ^-, which is taken out of the tokens; else 0."""
    end = _closing_brace(parser, parser.at)
    for size, closing in ((2, []), (4, ["{", "}"])):
        tail = [token.value for token in parser.tokens[end - size : end]]
        sign = tail[-1 - len(closing) // 2] if len(tail) == size else ""
        expected = ["^", sign] if size == 2 else ["^", "{", sign, "}"]
        if sign in ("+", "-") and tail == expected and end - size > parser.at:
            del parser.tokens[end - size : end]
            return 1 if sign == "+" else -1
    return 0


def _closing_brace(parser: PrimaryParser, at: int) -> int:
    """Where the group closes that is open at `at`."""
    depth = 1
    for position in range(at, len(parser.tokens)):
        value = parser.tokens[position].value
        depth += (value == "{") - (value == "}")
        if depth == 0:
            return position
    raise Unreadable("a brace is never closed")


# Integrals


def _integral(parser: PrimaryParser) -> Node:
    r"""\int_a^b ... dx, \int ... dx; the dx may stand in the numerator of a fraction."""
    parser.advance()
    ends: dict[str, Node] = {}
    for _ in range(2):
        mark = parser.here.value
        if mark in ("_", "^") and parser.here.kind == "operator" and mark not in ends:
            parser.advance()
            ends[mark] = parser.argument()
    if len(ends) == 1:
        raise Unreadable("an integral with one end")
    letter, body = _integrand(parser)
    if ends:
        return _bind("integral", body, letter, (ends["_"], ends["^"]))
    return Operation("integral", body, (Symbol(letter),), None, letter)


def _integrand(parser: PrimaryParser) -> tuple[str, Node]:
    at, size, letter, in_fraction = _differential(parser)
    if in_fraction:
        # \frac{dx}{x}: the dx is a factor 1, and the integral ends with the fraction's term.
        parser.tokens[at : at + size] = [Token("number", "1")] if _is_alone(parser, at, size) else []
        _go_to(parser, parser.at)
        return letter, _with_letter(parser, letter, parser.term)
    inner = type(parser)(parser.tokens[parser.at : at])
    inner.depth, inner.index_letters = parser.depth, (*parser.index_letters, letter)
    body: Node = Number(Fraction(1))
    if inner.here.kind != "end":
        body = inner.group(inner.sum)
        inner.expect_end()
    _go_to(parser, at + size)
    return letter, body


def _is_alone(parser: PrimaryParser, at: int, size: int) -> bool:
    before, after = parser.tokens[at - 1 : at], parser.tokens[at + size : at + size + 1]
    return [token.value for token in (*before, *after)] == ["{", "}"]


def _differential(parser: PrimaryParser) -> tuple[int, int, str, bool]:
    """(position, tokens, letter, in a numerator) of the differential that ends this integral.

    Each integral inside has its own, before it."""
    depth, open_integrals = 0, 0
    numerator: int | None = None
    position = parser.at
    while position < len(parser.tokens):
        _split_word(parser, position)
        value = parser.tokens[position].value
        if value == r"\int":
            open_integrals += 1
        if value in FRACTIONS and depth == 0 and numerator is None and open_integrals == 0:
            numerator = position + 1
        depth += (value in ("{", "(", "[")) - (value in ("}", ")", "]"))
        if depth < 0:
            break
        if depth == 0 and numerator is not None and position >= numerator:
            numerator = None
        found = _differential_at(parser, position)
        inside = depth == 1 and numerator is not None
        if found is not None and (depth == 0 or inside):
            if open_integrals == 0:
                return position, found[0], found[1], inside
            open_integrals -= 1
        position += 1
    raise Unreadable("an integral without its dx")


def _split_word(parser: PrimaryParser, at: int) -> None:
    """xdx as x and dx: a run of letters that ends in a differential."""
    token = parser.tokens[at]
    if token.kind == "word" and 2 < len(token.value) < 5 and token.value[-2] == "d":
        head = token.value[:-2]
        parser.tokens[at : at + 1] = [
            Token("word" if len(head) > 1 else "symbol", head, token.spaced),
            Token("word", token.value[-2:]),
        ]
        if at == parser.at:
            _go_to(parser, at)


def _differential_at(parser: PrimaryParser, at: int) -> tuple[int, str] | None:
    r"""(tokens, letter) of dx, d x, d\theta or \mathrm{d}x."""
    token = parser.tokens[at]
    if token.kind == "word" and len(token.value) == 2 and token.value[0] == "d":
        return 1, token.value[1]
    follows = parser.tokens[at + 1] if at + 1 < len(parser.tokens) else None
    if follows is None or token.value.strip() != "d" or token.kind not in ("symbol", "text"):
        return None
    if follows.kind == "symbol":
        return 2, follows.value
    if follows.kind == "command" and follows.value[1:] in GREEK:
        return 2, GREEK[follows.value[1:]]
    return None


# Derivatives


def read_derivative(parser: PrimaryParser) -> Node | None:
    r"""\frac{d}{dx} and \frac{d^2}{dx^2} before what they apply to, with d or \partial; else None, and the
    parser stays after \frac."""
    start = parser.at
    order = _numerator_of_derivative(parser)
    letter = _denominator_of_derivative(parser, order) if order else None
    if letter is None or not parser.starts_primary():
        _go_to(parser, start)
        return None
    body, rest = _body(parser, letter)
    parts = (Symbol(letter), Number(Fraction(order)))
    return _and_rest(Operation("derivative", body, parts, None, letter), rest)


def _numerator_of_derivative(parser: PrimaryParser) -> int:
    """The order of the derivative whose numerator {d^n} stands here, taken; 0 when it is none."""
    if not parser.is_operator("{") or parser.peek().value.strip() not in ("d", r"\partial"):
        return 0
    _go_to(parser, parser.at + 2)
    order = _order(parser)
    if not parser.is_operator("}") or order > _MAX_ORDER:
        return 0
    parser.advance()
    return order


def _denominator_of_derivative(parser: PrimaryParser, order: int) -> str | None:
    """The letter of {dx^n} with the same n, taken; None when it is no such thing."""
    if not parser.is_operator("{"):
        return None
    parser.advance()
    if parser.here.value == r"\partial" and parser.peek().kind == "symbol":
        size, letter = 2, parser.peek().value
    else:
        found = _differential_at(parser, parser.at) if parser.at < len(parser.tokens) else None
        if found is None:
            return None
        size, letter = found
    _go_to(parser, parser.at + size)
    if _order(parser) != order or not parser.is_operator("}"):
        return None
    parser.advance()
    return letter


def _order(parser: PrimaryParser) -> int:
    """The exponent that stands here, taken, or 1."""
    if not parser.is_operator("^"):
        return 1
    parser.advance()
    digits = parser.raw_argument()
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 3 else 0


CALCULUS: dict[str, Callable[[PrimaryParser], Node]] = {
    r"\int": _integral,
    r"\sum": _series,
    r"\prod": _series,
    r"\lim": _limit,
}
