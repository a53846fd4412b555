r"""A place in the tokens of an answer: looking, taking, going back, raw text; and how operations in one
letter are spelled: the k of \sum_{k=1}, the dx of an integral, the d/dx of a derivative, the side of a limit.
Owns what needs no grammar, which is the parser's."""

import itertools
from typing import NamedTuple

from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import FRACTIONS, GREEK, OPERATORS

_END = Token("end", "")
_CLOSERS = frozenset(["", *r") ] \} } \rangle \rvert \rVert \rfloor \rceil & \\ \end \mid".split()])


class Cursor:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.here = tokens[0] if tokens else _END

    def advance(self) -> Token:
        token = self.here
        self.at += 1
        self.here = self.tokens[self.at] if self.at < len(self.tokens) else _END
        return token

    def go_to(self, at: int) -> None:
        self.at = at
        self.here = self.tokens[at] if at < len(self.tokens) else _END

    def peek(self, ahead: int = 1) -> Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else _END

    def sees(self, value: str) -> bool:
        """Whether this sign or command stands here, not a text that is spelled like it."""
        return self.here.value == value and self.here.kind in ("operator", "command")

    def take(self, value: str) -> bool:
        """Take this sign or command if it stands here."""
        is_here = self.sees(value)
        if is_here:
            self.advance()
        return is_here

    def take_power_sign(self) -> bool:
        return self.here.value in ("^", "**") and (self.take("^") or self.take("**"))

    def unwrap_operator(self) -> None:
        """Take the braces off an operator that stands here alone in them, as in {-}5: they only space it."""
        if self.sees("{") and self.peek(2).value == "}" and self.peek().value in OPERATORS:
            self.tokens[self.at : self.at + 3] = [self.peek()]
            self.go_to(self.at)

    def expect(self, value: str) -> None:
        if not self.take(value):
            raise Unreadable(f"expected {value!r}, found {self.here.value or 'the end'!r}")

    def expect_end(self) -> None:
        if self.here.kind != "end":
            raise Unreadable(f"did not expect {self.here.value!r} here")

    def at_end_of_group(self) -> bool:
        return self.here.value in _CLOSERS and self.here.kind != "text"

    def environment_has(self, value: str) -> bool:
        """Whether `value` stands before the end of the environment that the cursor is in."""
        rest = (token.value for token in self.tokens[self.at :])
        return any(found == value for found in itertools.takewhile(lambda found: found != r"\end", rest))

    def drop_from_environment(self, value: str) -> None:
        end = next(
            (i for i, token in enumerate(self.tokens) if i > self.at and token.value == r"\end"), self.at
        )
        self.tokens[self.at : end] = [token for token in self.tokens[self.at : end] if token.value != value]
        self.go_to(self.at)

    def raw_argument(self) -> str:
        """The text of a subscript, which is part of a name and is not evaluated."""
        if not self.sees("{"):
            return self.advance().value if self.here.kind != "end" else ""
        self.advance()
        parts: list[str] = []
        depth = 1
        while self.here.kind != "end":
            value = self.advance().value
            depth += (value == "{") - (value == "}")
            if depth == 0:
                return "".join(parts).strip()
            parts.append(value)
        raise Unreadable("a subscript is never closed")


_MAX_ORDER = 10


def take_letter(cursor: Cursor, operation: str) -> str:
    """Take the letter that stands here, without reading it as a constant."""
    token = cursor.here
    if token.kind == "symbol":
        name = token.value
    elif token.kind == "command" and token.value[1:] in GREEK:
        name = GREEK[token.value[1:]]
    else:
        raise Unreadable(f"expected the letter of the {operation}, found {token.value or 'the end'!r}")
    cursor.advance()
    if cursor.sees("_"):
        raise Unreadable(f"a letter with a subscript in the {operation}")
    return name


def letter_of_series(cursor: Cursor, operation: str) -> str:
    """The letter that runs in the subscript k=1 or 1 \\le k \\le n; the cursor stays at its beginning."""
    start = cursor.at
    if cursor.here.kind == "number":
        cursor.go_to(start + 2)
    letter = take_letter(cursor, operation)
    cursor.go_to(start)
    return letter


# Limits


def take_arrow(cursor: Cursor) -> None:
    if cursor.here.value in (r"\to", r"\rightarrow", r"\longrightarrow"):
        cursor.advance()
    elif cursor.sees("-") and cursor.peek().value == ">":
        cursor.go_to(cursor.at + 2)
    else:
        raise Unreadable(f"expected \\to after the letter of a limit, found {cursor.here.value!r}")


def take_side(cursor: Cursor) -> int:
    """1 or -1 when the subscript ends in ^+ or ^-, which is taken out of the tokens; else 0."""
    end = _closing_brace(cursor)
    for size in (2, 4):
        match [token.value for token in cursor.tokens[end - size : end]]:
            case ["^", ("+" | "-") as sign] | ["^", "{", ("+" | "-") as sign, "}"] if end - size > cursor.at:
                del cursor.tokens[end - size : end]
                return 1 if sign == "+" else -1
    return 0


def _closing_brace(cursor: Cursor) -> int:
    """Where the group closes that the cursor is in."""
    depth = 1
    for position in range(cursor.at, len(cursor.tokens)):
        value = cursor.tokens[position].value
        depth += (value == "{") - (value == "}")
        if depth == 0:
            return position
    raise Unreadable("a brace is never closed")


# Integrals


class Differential(NamedTuple):
    """The dx that ends an integral."""

    at: int
    size: int
    """Tokens: 1 of dx, 2 of d x."""
    letter: str
    in_numerator: bool
    r"""\frac{dx}{x}: the integral ends with the fraction's term."""


def find_differential(cursor: Cursor) -> Differential:
    """The differential of the integral that begins here. Each integral inside has its own, before it."""
    depth, open_integrals = 0, 0
    numerator: int | None = None
    position = cursor.at
    while position < len(cursor.tokens):
        _split_word(cursor, position)
        value = cursor.tokens[position].value
        if value == r"\int":
            open_integrals += 1
        if value in FRACTIONS and depth == 0 and numerator is None and open_integrals == 0:
            numerator = position + 1
        depth += (value in ("{", "(", "[")) - (value in ("}", ")", "]"))
        if depth < 0:
            break
        if depth == 0 and numerator is not None and position >= numerator:
            numerator = None
        found = _differential_at(cursor, position)
        inside = depth == 1 and numerator is not None
        if found is not None and (depth == 0 or inside):
            if open_integrals == 0:
                return Differential(position, *found, inside)
            open_integrals -= 1
        position += 1
    raise Unreadable("an integral without its dx")


def take_out(cursor: Cursor, differential: Differential) -> None:
    """Take a dx out of its numerator, where it is a factor 1."""
    start, end = differential.at, differential.at + differential.size
    around = [token.value for token in (*cursor.tokens[start - 1 : start], *cursor.tokens[end : end + 1])]
    cursor.tokens[start:end] = [Token("number", "1")] if around == ["{", "}"] else []
    cursor.go_to(cursor.at)


def _split_word(cursor: Cursor, at: int) -> None:
    """xdx as x and dx: a run of letters that ends in a differential."""
    token = cursor.tokens[at]
    if token.kind == "word" and 2 < len(token.value) < 5 and token.value[-2] == "d":
        head = token.value[:-2]
        cursor.tokens[at : at + 1] = [
            Token("word" if len(head) > 1 else "symbol", head, token.spaced),
            Token("word", token.value[-2:]),
        ]
        if at == cursor.at:
            cursor.go_to(at)


def _differential_at(cursor: Cursor, at: int) -> tuple[int, str] | None:
    r"""(tokens, letter) of dx, d x, d\theta or \mathrm{d}x."""
    token = cursor.tokens[at]
    if token.kind == "word" and len(token.value) == 2 and token.value[0] == "d":
        return 1, token.value[1]
    follows = cursor.tokens[at + 1] if at + 1 < len(cursor.tokens) else None
    if follows is None or token.value.strip() != "d" or token.kind not in ("symbol", "text"):
        return None
    if follows.kind == "symbol":
        return 2, follows.value
    if follows.kind == "command" and follows.value[1:] in GREEK:
        return 2, GREEK[follows.value[1:]]
    return None


# Derivatives


def take_derivative_sign(cursor: Cursor) -> tuple[str, int] | None:
    r"""(letter, order) of the {d^n}{dx^n} that stands after a \frac, with d or \partial. None when it is no
    such thing; then the cursor may stand anywhere in it."""
    order = _take_numerator(cursor)
    letter = _take_denominator(cursor, order) if order else None
    return None if letter is None else (letter, order)


def _take_numerator(cursor: Cursor) -> int:
    """The order of the derivative whose numerator {d^n} stands here; 0 when it is none."""
    if not cursor.sees("{") or cursor.peek().value.strip() not in ("d", r"\partial"):
        return 0
    cursor.go_to(cursor.at + 2)
    order = _take_order(cursor)
    return order if order <= _MAX_ORDER and cursor.take("}") else 0


def _take_denominator(cursor: Cursor, order: int) -> str | None:
    """The letter of {dx^n} with the same n; None when it is no such thing."""
    if not cursor.take("{"):
        return None
    if cursor.here.value == r"\partial" and cursor.peek().kind == "symbol":
        size, letter = 2, cursor.peek().value
    else:
        found = _differential_at(cursor, cursor.at) if cursor.at < len(cursor.tokens) else None
        if found is None:
            return None
        size, letter = found
    cursor.go_to(cursor.at + size)
    return letter if _take_order(cursor) == order and cursor.take("}") else None


def _take_order(cursor: Cursor) -> int:
    """The exponent that stands here, or 1."""
    if not cursor.take("^"):
        return 1
    digits = cursor.raw_argument()
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 3 else 0
