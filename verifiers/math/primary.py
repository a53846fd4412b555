r"""The lower half of the answer grammar: numbers, letters, functions, brackets, environments and what follows them.

`PrimaryParser` keeps the position in the tokens and the two context flags (inside bars, inside a set-builder); the
levels above it (`AnswerParser`) complete it, so that groups can hold whole listings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

from verifiers.math.environments import read_environment
from verifiers.math.nodes import (
    Based,
    Bracket,
    Call,
    Constant,
    Degrees,
    Listing,
    NamedSet,
    Node,
    Number,
    Percent,
    Power,
    Product,
    Quotient,
    Relation,
    SetBuilder,
    SetOf,
    SetOperation,
    Sum,
    Symbol,
    Text,
)
from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import CONSTANTS, FUNCTIONS, GREEK, NAMED_SETS, clean_words

__all__ = ["PrimaryParser"]

MAX_DEPTH = 40
_END = Token("end", "")
_CLOSERS = {")", "]", r"\}", "}", r"\rangle", r"\rvert", r"\rVert", r"\rfloor", r"\rceil", "&", r"\\", r"\end", r"\mid"}
_FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"}
_BINOMIALS = {r"\binom", r"\dbinom", r"\tbinom"}
_OWN_FUNCTIONS = set("fghFGHP")
_NUMBER_WORDS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_DEGREE = {r"\circ", r"\degree", r"\deg"}
# How a letter run of plain text begins when it is a function and its letter: "sinx".
_FUSED = ("arcsin", "arccos", "arctan", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "sqrt")


class PrimaryParser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bars = 0
        self._brackets = 0
        self.colon_is_ratio = True
        self.here = tokens[0] if tokens else _END

    # Completed by AnswerParser.
    def listing(self) -> Node:
        raise NotImplementedError

    def sum(self) -> Node:
        raise NotImplementedError

    def relation(self) -> Node:
        raise NotImplementedError

    # Position

    def advance(self) -> Token:
        token = self.here
        self._at += 1
        self.here = self._tokens[self._at] if self._at < len(self._tokens) else _END
        return token

    def peek(self, ahead: int = 1) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def is_operator(self, value: str) -> bool:
        return self.here.value == value and self.here.kind in ("operator", "command")

    def environment_has(self, value: str) -> bool:
        """Whether `value` stands before the end of the environment that the parser is in."""
        rest = (token.value for token in self._tokens[self._at :])
        return any(found == value for found in itertools.takewhile(lambda found: found != r"\end", rest))

    def drop_from_environment(self, value: str) -> None:
        end = next((i for i, token in enumerate(self._tokens) if i > self._at and token.value == r"\end"), self._at)
        self._tokens[self._at : end] = [token for token in self._tokens[self._at : end] if token.value != value]
        self.here = self._tokens[self._at] if self._at < len(self._tokens) else _END

    def expect(self, value: str) -> None:
        if not self.is_operator(value):
            raise Unreadable(f"expected {value!r}, found {self.here.value or 'the end'!r}")
        self.advance()

    def expect_end(self) -> None:
        if self.here.kind != "end":
            raise Unreadable(f"did not expect {self.here.value!r} here")

    def at_end_of_group(self) -> bool:
        return self.here.kind == "end" or (self.here.value in _CLOSERS and self.here.kind != "text")

    def group(self, read: Callable[[], Node]) -> Node:
        """What `read` reads, one level deeper."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} nested groups")
        bars, self._bars = self._bars, 0
        node = read()
        self._bars = bars
        self._depth -= 1
        return node

    @staticmethod
    def negative(node: Node) -> Node:
        if isinstance(node, Number):
            return Number(-node.value, node.places, node.significant, node.open_ended)
        return Product((Number(Fraction(-1)), node))

    # Powers and what follows a primary

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
            value = Sum((value, Number(Fraction(token.value) / part)))
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
            elif (power := _NUMBER_WORDS.get(token.value.strip(" ~"))) and token.kind in ("word", "text"):
                self.advance()
                node = Product((node, Number(Fraction(10**power))))
            elif self.is_operator("'") and isinstance(node, Symbol):
                self.advance()
                node = Symbol(node.name + "'")
            elif self.is_operator("_") and isinstance(node, Number):
                self.advance()
                node = self._based(node)
            else:
                return node

    def _based(self, number: Number) -> Node:
        base = self._raw_argument().strip("()")
        words = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
                 "twelve": 12, "sixteen": 16}  # fmt: skip
        value = int(base) if base.isdecimal() and len(base) < 3 else words.get(base)
        if value is None or number.places is not None or not 2 <= value <= 36:
            raise Unreadable(f"a number with the subscript {base!r}")
        return Based(str(number.value), value)

    def argument(self) -> Node:
        """What a command or ^ applies to: a group, or one symbol with its sign."""
        if self.is_operator("{"):
            return self._braces()
        if self.is_operator("-") or self.is_operator("+"):
            sign = self.advance().value
            node = self.argument()
            return self.negative(node) if sign == "-" else node
        if self.here.kind == "word":
            return self._first_letter()
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
            self._tokens[self._at] = self.here = Token("number", token.value[1:])
            return Number(Fraction(int(token.value[0])))
        return self.argument()

    def _first_letter(self) -> Node:
        word = self.here.value
        if word in FUNCTIONS or word in CONSTANTS:
            return self.primary()
        rest = word[1:]
        self._tokens[self._at] = self.here = Token("word" if len(rest) > 1 else "symbol", rest)
        return self._letter(word[0])

    def _raw_argument(self) -> str:
        """The text of a subscript, which is part of a name and is not evaluated."""
        if not self.is_operator("{"):
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

    def _braces(self) -> Node:
        self.expect("{")
        node = self.group(self.whole)
        self.expect("}")
        return node

    def whole(self) -> Node:
        r"""A listing, or a fraction in TeX's old way: {a \over b}."""
        node = self.listing()
        if self.is_operator(r"\over"):
            self.advance()
            node = Quotient(node, self.listing())
        return node

    # Primaries

    def starts_primary(self) -> bool:
        token = self.here
        if token.kind in ("number", "symbol", "grouped", "function"):
            return True
        if token.kind == "word":
            return token.value not in ("and", "or", "to", "U", "mod", "if", "for", *_NUMBER_WORDS)
        if token.kind == "text":
            return False
        if token.kind == "command":
            name = token.value[1:]
            return (
                token.value in _FRACTIONS
                or token.value in _BINOMIALS
                or token.value in _COMMANDS
                or name in FUNCTIONS
                or name in GREEK
                or name in CONSTANTS
            )
        if token.value == "(" and self.peek().value in ("mod", r"\mod", r"\bmod"):
            return False
        return token.value in ("(", "{") or (token.value == "|" and self._bars == 0) or (
            token.value == "[" and token.kind == "operator"
        )

    def may_follow(self, left: Node) -> bool:
        """Whether a factor may stand here without a sign, after `left`."""
        token = self.here
        if token.kind == "number":
            last = left.factors[-1] if isinstance(left, Product) else left
            if isinstance(last, (Number, Symbol)):
                raise Unreadable(f"{token.value!r} follows without a sign")
        if token.value == "[" and self._brackets:
            # In ]1, 3[ and [1, 3[ it closes.
            return False
        return not isinstance(left, (NamedSet, Text, SetOf)) and not (isinstance(left, Bracket) and token.value == "U")

    def primary(self) -> Node:
        token = self.here
        if token.kind == "number" or token.kind == "grouped":
            return self._number()
        if token.kind == "symbol":
            self.advance()
            return self._letter(token.value)
        if token.kind == "word":
            return self._word()
        if token.kind == "text":
            self.advance()
            return self._text(token.value)
        if token.kind == "function":
            self.advance()
            name = token.value.strip()
            return self._function(FUNCTIONS[name]) if name in FUNCTIONS else self._text(name)
        reader = _COMMANDS.get(token.value) or _OPERATORS.get(token.value)
        if reader is not None:
            return reader(self)
        name = token.value[1:] if token.kind == "command" else ""
        if name in FUNCTIONS:
            self.advance()
            return self._function(FUNCTIONS[name])
        if name in GREEK:
            self.advance()
            return self._letter(GREEK[name])
        if name in CONSTANTS:
            self.advance()
            return Constant(CONSTANTS[name])
        raise Unreadable(f"did not expect {token.value or 'the end'!r} here")

    def _number(self) -> Node:
        node = read_number(self.advance())
        repeating = self._repeating_part(node)
        if repeating is not None:
            return repeating
        if self.here.value in (r"\ldots", r"\dots", "...", r"\cdots") and node.places is not None:
            self.advance()
            return Number(node.value, node.places, node.significant, open_ended=True)
        return self._mixed(node) if node.places is None else node

    def _repeating_part(self, node: Number) -> Node | None:
        r"""0.1\overline{6}, 0.\dot{3}: the exact fraction."""
        if self.is_operator(".") and self.peek().value in (r"\overline", r"\bar", r"\dot"):
            self.advance()
            node = Number(node.value, 0)
        if node.places is None or self.here.value not in (r"\overline", r"\bar", r"\dot"):
            return None
        self.advance()
        digits = self._raw_argument()
        if self.is_operator(r"\dot"):
            raise Unreadable("dots over two digits")
        if not digits.isdecimal() or not digits.isascii():
            raise Unreadable(f"a repeating part {digits!r}")
        scale = 10**node.places
        return Number(node.value + Fraction(int(digits), scale * (10 ** len(digits) - 1)))

    def _mixed(self, whole: Number) -> Node:
        r"""2\frac{1}{2} and 2 1/2: a whole number and a proper fraction of literal integers, added."""
        if self.here.value in _FRACTIONS:
            at, here, saved = self._at, self.here, list(self._tokens[self._at : self._at + 4])
            fraction = self.primary()
            if _is_proper(fraction):
                return Sum((whole, fraction))
            self._tokens[at : at + 4] = saved
            self._at, self.here = at, here
            return whole
        top, slash, bottom = self.here, self.peek(), self.peek(2)
        if top.spaced and top.value.isdecimal() and slash.value == "/" and bottom.value.isdecimal():
            fraction = Quotient(Number(Fraction(int(top.value))), Number(Fraction(int(bottom.value))))
            if _is_proper(fraction) and self.peek(3).value not in ("^", "!", "/"):
                for _ in range(3):
                    self.advance()
                return Sum((whole, fraction))
        return whole

    def _letter(self, name: str) -> Node:
        if name == "e":
            return Constant("e")
        if name in ("i", "imath"):
            if not self.is_operator("_"):
                return Constant("i")
        if name == "pi":
            return Constant("pi")
        if self.is_operator("_"):
            self.advance()
            name = f"{name}_{clean_words(self._raw_argument())}"
        symbol = Symbol(name)
        while self.is_operator("'"):
            self.advance()
            symbol = Symbol(symbol.name + "'")
        bare = name.partition("_")[0].rstrip("'")
        if bare in _OWN_FUNCTIONS and self.is_operator("("):
            return self._own_function(symbol.name)
        return symbol

    def _own_function(self, name: str) -> Node:
        group = self._round()
        arguments = group.items if isinstance(group, Bracket) else (group,)
        return Call(name, arguments, known=False)

    def _word(self) -> Node:
        word = self.advance().value
        if word in FUNCTIONS:
            return self._function(FUNCTIONS[word])
        if word in CONSTANTS:
            return Constant(CONSTANTS[word])
        if word in GREEK:
            return self._letter(GREEK[word])
        for name in _FUSED:
            if word.startswith(name) and len(word) == len(name) + 1:
                rest = Token("symbol", word[-1], spaced=True)
                self._tokens.insert(self._at, rest)
                self.here = rest
                return self._function(FUNCTIONS[name])
        if len(word) > 3 or self.is_operator("_"):
            return Text(clean_words(word))
        letters = [self._letter(letter) for letter in word[:-1]]
        # The last letter takes what follows it: the subscript, the power of xy^2 is y's.
        last = self._letter(word[-1])
        if self.is_operator("^") or self.is_operator("**"):
            self.advance()
            last = Power(last, self.argument())
        return Product((*letters, last))

    def _text(self, content: str) -> Node:
        name = content.strip()
        if len(name) == 1 and name.isalpha():
            return self._letter(name)
        if name in FUNCTIONS and not self.at_end_of_group():
            return self._function(FUNCTIONS[name])
        words = clean_words(content)
        if not words:
            raise Unreadable("an empty \\text{}")
        return Text(words)

    # Functions

    def _function(self, name: str) -> Node:
        if name == "sqrt" and self.is_operator("["):
            return self._root()
        base: Node | None = None
        exponent: Node | None = None
        for _ in range(2):
            if self.is_operator("_") and name in ("log", "ln", "max", "min"):
                self.advance()
                base = self.argument()
            elif (self.is_operator("^") or self.is_operator("**")) and exponent is None and name != "sqrt":
                self.advance()
                exponent = self.argument()
        arguments = self._function_arguments(name)
        if exponent == Number(Fraction(-1)) and "a" + name in FUNCTIONS.values():
            name, exponent = "a" + name, None
        if name == "log" and base is not None:
            arguments = (*arguments, base)
        call = Call(name, arguments)
        return call if exponent is None else Power(call, exponent)

    def _function_arguments(self, name: str) -> tuple[Node, ...]:
        if self.is_operator("("):
            group = self._round()
            if isinstance(group, Bracket):
                return group.items
            return (group,)
        if self.is_operator("{") or name in ("sqrt", "cbrt"):
            group = self.argument()
            return group.items if isinstance(group, Listing) else (group,)
        # \sin 2x: factors without a sign, up to the next function.
        factors = [self.power()]
        while self.starts_primary() and self.may_follow(factors[-1]) and not self._is_function():
            if self.here.value in ("(", "["):
                break
            factors.append(self.power())
        return (factors[0] if len(factors) == 1 else Product(tuple(factors)),)

    def _is_function(self) -> bool:
        token = self.here
        name = token.value[1:] if token.kind == "command" else token.value
        return token.kind in ("command", "word", "function") and name in FUNCTIONS and name != "sqrt"

    def _root(self) -> Node:
        self.expect("[")
        degree = self.group(self.sum)
        self.expect("]")
        return Call("root", (self.argument(), degree))

    def _sqrt(self) -> Node:
        self.advance()
        return self._root() if self.is_operator("[") else Call("sqrt", (self.argument(),))

    def _fraction(self) -> Node:
        self.advance()
        top = self.single()
        return Quotient(top, self.single())

    def _binomial(self) -> Node:
        self.advance()
        top = self.single()
        return Call("binomial", (top, self.single()))

    def _overline(self) -> Node:
        self.advance()
        name = self._raw_argument()
        if not name.isalnum():
            raise Unreadable(f"a line over {name!r}")
        if name.isdecimal():
            raise Unreadable("a line over digits")
        return Symbol(f"overline {name}")

    def _marked(self) -> Node:
        r"""\angle ABC, \triangle ABC: one name."""
        mark = self.advance().value[1:]
        if self.here.kind not in ("word", "symbol"):
            raise Unreadable(f"a lone \\{mark}")
        return Symbol(f"{mark} {self.advance().value}")

    def _blackboard(self) -> Node:
        self.advance()
        name = self._raw_argument()
        if name not in NAMED_SETS:
            raise Unreadable(f"the set {name!r}")
        return self._part_of_set(NamedSet(NAMED_SETS[name]))

    def _part_of_set(self, whole: NamedSet) -> Node:
        r"""\mathbb{R}^+ and its kin."""
        if not (self.is_operator("^") or self.is_operator("_")):
            return whole
        self.advance()
        mark = self._raw_argument()
        zero, infinity = Number(Fraction(0)), Constant("infinity")
        if mark in ("*", r"\ast", r"\times") and whole.name == "R":
            return SetOperation("difference", whole, SetOf((zero,)))
        if mark in ("+", ">0") and whole.name == "R":
            return Bracket("(", ")", (zero, infinity))
        if mark in ("-", "<0") and whole.name == "R":
            return Bracket("(", ")", (self.negative(infinity), zero))
        if mark in ("+", "-", "*") and whole.name in ("Z", "Q"):
            return NamedSet(whole.name + mark)
        raise Unreadable(f"the set with the mark {mark!r}")

    def _empty_set(self) -> Node:
        self.advance()
        return NamedSet("empty")

    # Brackets

    def _round(self) -> Node:
        self.expect("(")
        return self._bracket("(", (")", "]"))

    def _square(self) -> Node:
        self.expect("[")
        return self._bracket("[", ("]", ")", "["))

    def _outward(self) -> Node:
        """]1, 2[: an open interval, in the French way."""
        self.expect("]")
        node = self._bracket("]", ("[", "]"))
        if not isinstance(node, Bracket):
            raise Unreadable("a lone ]")
        return Bracket("(", ")" if node.closing == "[" else "]", node.items)

    def _angle(self) -> Node:
        self.advance()
        items = self._items(self.group(self.listing))
        self.expect(r"\rangle")
        return Bracket("<", ">", items)

    def _bracket(self, opening: str, closings: tuple[str, ...]) -> Node:
        self._brackets += 1
        inner = self.group(self.listing)
        self._brackets -= 1
        closing = self.here.value
        if closing not in closings or self.here.kind != "operator":
            raise Unreadable(f"expected {closings[0]!r}, found {closing or 'the end'!r}")
        self.advance()
        if opening != "]" and closing == "[":
            closing = ")"
        if not isinstance(inner, Listing):
            if (opening, closing) not in (("(", ")"), ("[", "]")):
                raise Unreadable(f"brackets {opening} and {closing} around one thing")
            return inner
        if inner.joined_by != ",":
            raise Unreadable(f"a bracket with {inner.joined_by!r} in it")
        return Bracket(opening, closing, inner.items)

    @staticmethod
    def _items(node: Node) -> tuple[Node, ...]:
        return node.items if isinstance(node, Listing) else (node,)

    def _set(self) -> Node:
        self.expect(r"\{")
        if self.is_operator(r"\}"):
            self.advance()
            return NamedSet("empty")
        ratio, self.colon_is_ratio = self.colon_is_ratio, False
        self._bars += 1
        bars, self._bars = self._bars, 1
        self._depth += 1
        inner = self.listing()
        condition: Node | None = None
        if self.is_operator(r"\mid") or self.is_operator("|") or self.is_operator(":"):
            self.advance()
            self._bars = 0
            condition = self.group(self.listing)
        self._depth -= 1
        self._bars = bars - 1
        self.colon_is_ratio = ratio
        self.expect(r"\}")
        if condition is None:
            return SetOf(self._items(inner))
        if isinstance(inner, Relation) and inner.operators == ("in",):
            # {x \in R | x > 2}: where x lives is one more condition.
            if inner.sides[1] != NamedSet("R"):
                condition = Listing((inner, *self._items(condition)), "and")
            inner = inner.sides[0]
        return SetBuilder(inner, condition)

    def _bars_group(self) -> Node:
        """|x|: the absolute value. Inside, the next bar at this level closes."""
        opening = self.advance().value
        closing = {"|": "|", r"\lvert": r"\rvert", r"\|": r"\|", r"\lVert": r"\rVert", r"\vert": r"\vert"}[opening]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} nested groups")
        bars, self._bars = self._bars, self._bars + (opening == "|")
        inner = self.sum()
        self._bars = bars
        self._depth -= 1
        self.expect(closing)
        return Call("abs", (inner,))

    def _rounded(self) -> Node:
        opening = self.advance().value
        name, closing = {r"\lfloor": ("floor", r"\rfloor"), r"\lceil": ("ceiling", r"\rceil")}[opening]
        inner = self.group(self.sum)
        self.expect(closing)
        return Call(name, (inner,))

    def _environment(self) -> Node:
        return self.group(lambda: read_environment(self))


def read_number(token: Token) -> Number:
    """The exact value of a literal, with the digits it was written with."""
    text = token.value
    mantissa, letter, exponent = text.lower().partition("e")
    if letter and abs(int(exponent)) > 5000:
        raise Unreadable(f"the exponent {exponent}")
    value = Fraction(mantissa) if len(mantissa) < 4500 else _refuse_long(mantissa)
    if letter:
        value *= Fraction(10) ** int(exponent)
    whole, point, decimals = mantissa.partition(".")
    if not point:
        return Number(value)
    significant = len((whole + decimals).lstrip("0")) or 1
    places = len(decimals) - (int(exponent) if letter else 0)
    return Number(value, max(places, 0), significant)


def _refuse_long(digits: str) -> Fraction:
    raise Unreadable(f"a number of {len(digits)} digits")


def _is_proper(node: Node) -> bool:
    if not isinstance(node, Quotient):
        return False
    top, bottom = node.top, node.bottom
    return (
        isinstance(top, Number) and isinstance(bottom, Number) and top.places is None and bottom.places is None
        and 0 < top.value < bottom.value
    )  # fmt: skip


_COMMANDS: dict[str, Callable[[PrimaryParser], Node]] = {
    **dict.fromkeys(_FRACTIONS, PrimaryParser._fraction),
    **dict.fromkeys(_BINOMIALS, PrimaryParser._binomial),
    r"\sqrt": PrimaryParser._sqrt,
    r"\overline": PrimaryParser._overline,
    r"\bar": PrimaryParser._overline,
    r"\angle": PrimaryParser._marked,
    r"\triangle": PrimaryParser._marked,
    r"\mathbb": PrimaryParser._blackboard,
    r"\emptyset": PrimaryParser._empty_set,
    r"\varnothing": PrimaryParser._empty_set,
    r"\langle": PrimaryParser._angle,
    r"\{": PrimaryParser._set,
    r"\lvert": PrimaryParser._bars_group,
    r"\lVert": PrimaryParser._bars_group,
    r"\|": PrimaryParser._bars_group,
    r"\lfloor": PrimaryParser._rounded,
    r"\lceil": PrimaryParser._rounded,
    r"\begin": PrimaryParser._environment,
}
_OPERATORS: dict[str, Callable[[PrimaryParser], Node]] = {
    "(": PrimaryParser._round,
    "[": PrimaryParser._square,
    "]": PrimaryParser._outward,
    "{": PrimaryParser._braces,
    "|": PrimaryParser._bars_group,
}
