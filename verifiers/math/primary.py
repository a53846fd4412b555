r"""The lower half of the answer grammar: a primary (number, name, bracket, command), what follows it.

The levels above a power (`AnswerParser`) complete this class, so that a group can hold a whole listing."""

from __future__ import annotations

from fractions import Fraction

from verifiers.math.brackets import BRACKETS, read_braces
from verifiers.math.commands import COMMANDS
from verifiers.math.cursor import Cursor
from verifiers.math.literals import read_based, read_literal, read_number
from verifiers.math.names import read_first_letter, read_function, read_letter, read_text, read_word
from verifiers.math.nodes import (
    Bracket,
    Call,
    Constant,
    Degrees,
    NamedSet,
    Node,
    Number,
    Percent,
    Power,
    Product,
    Quotient,
    SetOf,
    Sum,
    Symbol,
    Text,
)  # fmt: skip
from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import CONSTANTS, FUNCTIONS, GREEK, TEN_POWERS

__all__ = ["PrimaryParser"]

_DEGREE = {r"\circ", r"\degree", r"\deg"}


def _scaled(node: Node, factor: int) -> Node:
    """5 million is one number, not a product that is left to be computed."""
    if isinstance(node, Number) and (node.value * factor).denominator == 1:
        return Number(node.value * factor)
    return Product((node, Number(Fraction(factor))))


class PrimaryParser(Cursor):
    def listing(self) -> Node:
        raise NotImplementedError

    def sum(self) -> Node:
        raise NotImplementedError

    def term(self) -> Node:
        raise NotImplementedError

    def relation(self) -> Node:
        raise NotImplementedError

    @staticmethod
    def negative(node: Node) -> Node:
        if isinstance(node, Number):
            return Number(-node.value, node.places, node.significant, node.open_ended)
        return Product((Number(Fraction(-1)), node))

    def power(self) -> Node:
        base = self.postfix(self.primary())
        while self.is_operator("^") or self.is_operator("**"):
            self.advance()
            if self.here.value in _DEGREE:
                self.advance()
                base = self._degrees(base)
                continue
            if self.is_operator("{") and self.peek().value in _DEGREE and self.peek(2).value == "}":
                for _ in range(3):
                    self.advance()
                base = self._degrees(base)
                continue
            base = self.postfix(Power(base, self.argument()))
        return base

    def _degrees(self, base: Node) -> Node:
        """30° and what may follow it: 30° 15' 20''."""
        value = base
        for mark, part in (("'", 60), ("''", 3600)):
            token = self.here
            follows = self.peek()
            if token.kind != "number" or follows.value != "'":
                break
            seconds = self.peek(2).value == "'"
            if seconds != (mark == "''"):
                continue
            self.advance()
            for _ in range(2 if seconds else 1):
                self.advance()
            minutes = Fraction(token.value) / part
            added = Number(minutes)
            value = Number(value.value + minutes) if isinstance(value, Number) else Sum((value, added))
        return Degrees(value)

    def postfix(self, node: Node) -> Node:
        while True:
            token = self.here
            if self.is_operator("!"):
                self.advance()
                if self.is_operator("!") and not self.here.spaced:
                    self.advance()
                    node = Call("double_factorial", (node,))
                else:
                    node = Call("factorial", (node,))
            elif self.is_operator(r"\%") or self.is_operator("%"):
                self.advance()
                node = Percent(node)
            elif token.value in _DEGREE and token.kind == "command":
                self.advance()
                node = self._degrees(node)
            elif (power := TEN_POWERS.get(token.value.strip(" ~"))) and token.kind in ("word", "text"):
                self.advance()
                node = _scaled(node, 10**power)
            elif self.is_operator("'") and isinstance(node, Symbol):
                self.advance()
                node = Symbol(node.name + "'")
            elif self.is_operator("_") and isinstance(node, Number):
                self.advance()
                node = read_based(self, node)
            else:
                return node

    def argument(self) -> Node:
        """What a command or ^ applies to: a group, or one symbol with its sign."""
        if self.is_operator("{"):
            return read_braces(self)
        if self.is_operator("-") or self.is_operator("+"):
            sign = self.advance().value
            node = self.argument()
            return self.negative(node) if sign == "-" else node
        if self.here.kind == "word":
            return read_first_letter(self)
        if self.here.kind == "number":
            # Not a mixed number: 2^3\\frac12 has the exponent 3.
            number = read_number(self.advance())
            return self.postfix(number) if self.is_operator("!") else number
        if self.is_operator("("):
            return self.primary()
        node = self.primary()
        return self.postfix(node) if self.is_operator("!") else node

    def single(self) -> Node:
        r"""The argument of \frac without braces: one digit of \frac12."""
        token = self.here
        if token.kind == "number" and len(token.value) > 1 and token.value.isdecimal():
            self.tokens[self.at] = self.here = Token("number", token.value[1:])
            return Number(Fraction(int(token.value[0])))
        return self.argument()

    def whole(self) -> Node:
        r"""A listing, or a fraction in TeX's old way: {a \over b}."""
        node = self.listing()
        if self.is_operator(r"\over"):
            self.advance()
            node = Quotient(node, self.listing())
        return node

    def starts_primary(self) -> bool:
        token = self.here
        if token.kind in ("number", "symbol", "grouped", "function"):
            return True
        if token.kind == "word":
            return token.value not in ("and", "or", "to", "U", "mod", "if", "for", *TEN_POWERS)
        if token.kind == "text":
            return False
        if token.kind == "command":
            name = token.value[1:]
            return (
                token.value in COMMANDS
                or token.value in BRACKETS
                or name in FUNCTIONS
                or name in GREEK
                or name in CONSTANTS
            )
        if token.value == "(" and self.peek().value in ("mod", r"\mod", r"\bmod"):
            return False
        return (
            token.value in ("(", "{")
            or (token.value == "|" and self.bars == 0)
            or (token.value == "[" and token.kind == "operator")
        )

    def may_follow(self, left: Node) -> bool:
        """Whether a factor may stand here without a sign, after `left`."""
        token = self.here
        if token.kind == "number":
            last = left.factors[-1] if isinstance(left, Product) else left
            if isinstance(last, (Number, Symbol)):
                raise Unreadable(f"{token.value!r} follows without a sign")
        if token.value == "[" and self.brackets:
            # In ]1, 3[ and [1, 3[ it closes.
            return False
        return not isinstance(left, (NamedSet, Text, SetOf)) and not (
            isinstance(left, Bracket) and token.value == "U"
        )

    def primary(self) -> Node:
        token = self.here
        if token.kind == "number" or token.kind == "grouped":
            return read_literal(self)
        if token.kind == "symbol":
            self.advance()
            return read_letter(self, token.value)
        if token.kind == "word":
            return read_word(self)
        if token.kind == "text":
            self.advance()
            return read_text(self, token.value)
        if token.kind == "function":
            self.advance()
            name = token.value.strip()
            return read_function(self, FUNCTIONS[name]) if name in FUNCTIONS else read_text(self, name)
        reader = COMMANDS.get(token.value) or BRACKETS.get(token.value)
        if reader is not None:
            return reader(self)
        name = token.value[1:] if token.kind == "command" else ""
        if name in FUNCTIONS:
            self.advance()
            return read_function(self, FUNCTIONS[name])
        if name in GREEK:
            self.advance()
            return read_letter(self, GREEK[name])
        if name in CONSTANTS:
            self.advance()
            return Constant(CONSTANTS[name])
        raise Unreadable(f"did not expect {token.value or 'the end'!r} here")
