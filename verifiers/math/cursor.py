r"""A place in the tokens of an answer. Owns what needs no grammar: looking, taking, going back, raw text."""

import itertools

from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import OPERATORS

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
        # Not by `sees`: of all methods this is called most.
        here = self.here
        if here.value != value or here.kind not in ("operator", "command"):
            return False
        self.advance()
        return True

    def take_power_sign(self) -> bool:
        return self.here.value in ("^", "**") and (self.take("^") or self.take("**"))

    def unwrap_operator(self) -> None:
        """Take the braces off an operator that stands here alone in them, as in {-}5: they only space it."""
        # Cheapest first: a place in a formula is rarely a brace.
        if (
            self.here.value == "{"
            and self.sees("{")
            and self.peek(2).value == "}"
            and self.peek().value in OPERATORS
        ):
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
