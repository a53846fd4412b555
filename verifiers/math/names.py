"""Letters, words and functions: what a run of letters means, and what a function applies to."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from verifiers.math.brackets import read_round
from verifiers.math.nodes import (
    Bracket,
    Call,
    Constant,
    Listing,
    Node,
    Number,
    Power,
    Product,
    SetOf,
    Symbol,
    Text,
)
from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import CONSTANTS, FUNCTIONS, GREEK, clean_words

if TYPE_CHECKING:
    from verifiers.math.primary import PrimaryParser

__all__ = ["read_first_letter", "read_function", "read_letter", "read_root", "read_text", "read_word"]

# Letters that, before a bracket, are the writer's own functions: f(x) is not f times x.
_OWN_FUNCTIONS = set("fghFGHP")
# How a letter run of plain text begins when it is a function and its letter: "sinx".
_FUSED = ("arcsin", "arccos", "arctan", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "sqrt")


def read_letter(parser: PrimaryParser, name: str) -> Node:
    if name == "e":
        return Constant("e")
    if name in ("i", "imath"):
        if not parser.is_operator("_") and name not in parser.index_letters:
            return Constant("i")
    if name == "pi":
        return Constant("pi")
    if parser.is_operator("_"):
        parser.advance()
        name = f"{name}_{clean_words(parser.raw_argument())}"
    symbol = Symbol(name)
    while parser.is_operator("'"):
        parser.advance()
        symbol = Symbol(symbol.name + "'")
    bare = name.partition("_")[0].rstrip("'")
    if bare in _OWN_FUNCTIONS and parser.is_operator("("):
        return _own_function(parser, symbol.name)
    return symbol


def _own_function(parser: PrimaryParser, name: str) -> Node:
    group = read_round(parser)
    arguments = group.items if isinstance(group, Bracket) else (group,)
    return Call(name, arguments, known=False)


def read_word(parser: PrimaryParser) -> Node:
    word = parser.advance().value
    if word in FUNCTIONS:
        return read_function(parser, FUNCTIONS[word])
    if word in CONSTANTS:
        return Constant(CONSTANTS[word])
    if word in GREEK:
        return read_letter(parser, GREEK[word])
    for name in _FUSED:
        if word.startswith(name) and len(word) == len(name) + 1:
            rest = Token("symbol", word[-1], spaced=True)
            parser.tokens.insert(parser.at, rest)
            parser.here = rest
            return read_function(parser, FUNCTIONS[name])
    if len(word) > 3 or parser.is_operator("_"):
        return Text(clean_words(word))
    letters = [read_letter(parser, letter) for letter in word[:-1]]
    # The last letter takes what follows it: the subscript, the power of xy^2 is y's.
    last = read_letter(parser, word[-1])
    if parser.is_operator("^") or parser.is_operator("**"):
        parser.advance()
        last = Power(last, parser.argument())
    return Product((*letters, last))


def read_text(parser: PrimaryParser, content: str) -> Node:
    name = content.strip()
    if len(name) == 1 and name.isalpha():
        return read_letter(parser, name)
    if name in FUNCTIONS and not parser.at_end_of_group():
        return read_function(parser, FUNCTIONS[name])
    words = clean_words(content)
    if not words:
        raise Unreadable("an empty \\text{}")
    return Text(words)


def read_first_letter(parser: PrimaryParser) -> Node:
    word = parser.here.value
    if word in FUNCTIONS or word in CONSTANTS:
        return parser.primary()
    rest = word[1:]
    parser.tokens[parser.at] = parser.here = Token("word" if len(rest) > 1 else "symbol", rest)
    return read_letter(parser, word[0])


def read_function(parser: PrimaryParser, name: str) -> Node:
    if name == "sqrt" and parser.is_operator("["):
        return read_root(parser)
    base: Node | None = None
    exponent: Node | None = None
    for _ in range(2):
        if parser.is_operator("_") and name in ("log", "ln", "max", "min"):
            parser.advance()
            base = parser.argument()
        elif (parser.is_operator("^") or parser.is_operator("**")) and exponent is None and name != "sqrt":
            parser.advance()
            exponent = parser.argument()
    arguments = _arguments(parser, name)
    if exponent == Number(Fraction(-1)) and "a" + name in FUNCTIONS.values():
        name, exponent = "a" + name, None
    if name == "log" and base is not None:
        arguments = (*arguments, base)
    call = Call(name, arguments)
    return call if exponent is None else Power(call, exponent)


def _arguments(parser: PrimaryParser, name: str) -> tuple[Node, ...]:
    if parser.is_operator("("):
        group = read_round(parser)
        if isinstance(group, Bracket):
            return group.items
        return (group,)
    if parser.is_operator(r"\{") and name in ("max", "min", "gcd", "lcm"):
        members = parser.primary()
        return members.items if isinstance(members, SetOf) else (members,)
    if parser.is_operator("{") or name in ("sqrt", "cbrt"):
        group = parser.argument()
        return group.items if isinstance(group, Listing) else (group,)
    # \sin 2x: factors without a sign, up to the next function.
    factors = [parser.power()]
    while parser.starts_primary() and parser.may_follow(factors[-1]) and not _is_function(parser):
        if parser.here.value in ("(", "["):
            break
        factors.append(parser.power())
    return (factors[0] if len(factors) == 1 else Product(tuple(factors)),)


def _is_function(parser: PrimaryParser) -> bool:
    token = parser.here
    name = token.value[1:] if token.kind == "command" else token.value
    return token.kind in ("command", "word", "function") and name in FUNCTIONS and name != "sqrt"


def read_root(parser: PrimaryParser) -> Node:
    parser.expect("[")
    degree = parser.group(parser.sum)
    parser.expect("]")
    return Call("root", (parser.argument(), degree))
