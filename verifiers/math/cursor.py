r"""A place in the tokens of an answer, the depth of nesting there, and the few flags that depend on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from verifiers.math.nodes import Node
from verifiers.math.tokens import Token, Unreadable

__all__ = ["Cursor"]

MAX_DEPTH = 40
_END = Token("end", "")
_CLOSERS = {
    ")",
    "]",
    r"\}",
    "}",
    r"\rangle",
    r"\rvert",
    r"\rVert",
    r"\rfloor",
    r"\rceil",
    "&",
    r"\\",
    r"\end",
    r"\mid",
}


class Cursor:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        """Open | at this level: the next one closes."""
        self.brackets = 0
        """Open round and square brackets, where a [ may close an interval."""
        self.colon_is_ratio = True
        self.index_letters: tuple[str, ...] = ()
        """Letters that an operation around this place binds: i is the index of \\sum_{i=1} there."""
        self.here = tokens[0] if tokens else _END

    def advance(self) -> Token:
        token = self.here
        self.at += 1
        self.here = self.tokens[self.at] if self.at < len(self.tokens) else _END
        return token

    def peek(self, ahead: int = 1) -> Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else _END

    def is_operator(self, value: str) -> bool:
        return self.here.value == value and self.here.kind in ("operator", "command")

    def expect(self, value: str) -> None:
        if not self.is_operator(value):
            raise Unreadable(f"expected {value!r}, found {self.here.value or 'the end'!r}")
        self.advance()

    def expect_end(self) -> None:
        if self.here.kind != "end":
            raise Unreadable(f"did not expect {self.here.value!r} here")

    def at_end_of_group(self) -> bool:
        return self.here.kind == "end" or (self.here.value in _CLOSERS and self.here.kind != "text")

    def group(self, read: Callable[[], Node], *, bars: int = 0) -> Node:
        """What `read` reads, one level deeper, with `bars` open bars there."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} nested groups")
        outer, self.bars = self.bars, bars
        node = read()
        self.bars = outer
        self.depth -= 1
        return node

    def environment_has(self, value: str) -> bool:
        """Whether `value` stands before the end of the environment that the parser is in."""
        rest = (token.value for token in self.tokens[self.at :])
        return any(found == value for found in itertools.takewhile(lambda found: found != r"\end", rest))

    def drop_from_environment(self, value: str) -> None:
        end = next(
            (i for i, token in enumerate(self.tokens) if i > self.at and token.value == r"\end"), self.at
        )
        self.tokens[self.at : end] = [token for token in self.tokens[self.at : end] if token.value != value]
        self.here = self.tokens[self.at] if self.at < len(self.tokens) else _END

    def raw_argument(self) -> str:
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
