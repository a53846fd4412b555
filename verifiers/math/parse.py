r"""From tokens to the tree: a recursive descent parser for the LaTeX and plain text in which answers are
written.

    listing   := relation ((',' | ';' | and | or) relation)*
    relation  := sets (('=' | '<' | \in | ...) sets)*
    sets      := ratio ((\cup | \cap | \setminus) ratio)*
    ratio     := sum (':' sum)*
    sum       := ['+' | '-' | \pm] term (('+' | '-' | \pm | \mp) term)*
    term      := power (('*' | '/' | nothing) power)*
    power     := primary postfix* ['^' argument]

Reads all of the text or raises Unreadable; never guesses past a symbol it does not know. Bounded: at most
MAX_TOKENS tokens and MAX_DEPTH nested groups."""

from __future__ import annotations

from verifiers.math.nodes import (
    Constant,
    Listing,
    Modulo,
    NamedSet,
    Node,
    PlusMinus,
    Product,
    Quotient,
    Ratio,
    Relation,
    SetOperation,
    Sum,
)
from verifiers.math.primary import PrimaryParser
from verifiers.math.tokens import Token, Unreadable, plain_characters, tokenize
from verifiers.math.words import RELATIONS

__all__ = ["Unreadable", "parse_answer"]

_SEPARATORS = {",": ",", ";": ","}
_JOINERS = {
    "and": "and",
    "or": "or",
    r"\land": "and",
    r"\lor": "or",
    r"\wedge": "and",
    r"\vee": "or",
    r"\&": "and",
}
_SET_OPERATIONS = {r"\cup": "union", r"\cap": "intersection", r"\setminus": "difference",
r"\backslash": "difference",
                   r"\bigcup": "union"}  # fmt: skip
_TIMES = {"*", r"\cdot", r"\times", r"\ast", r"\bullet"}
_DIVIDED = {"/", r"\div"}


def parse_answer(text: str) -> Node:
    """The tree of one answer. Raises Unreadable."""
    tokens = tokenize(plain_characters(text))
    if not tokens:
        raise Unreadable("nothing is written")
    parser = AnswerParser(tokens)
    node = parser.whole()
    parser.expect_end()
    return node


class AnswerParser(PrimaryParser):
    """The levels of the grammar above a power; those below are in PrimaryParser."""

    def listing(self) -> Node:
        items = [self.relation()]
        joiners: list[str] = []
        while True:
            joiner = self._joiner()
            if joiner is None:
                break
            if self.at_end_of_group():
                # A comma at the end, as in (5,), says nothing.
                break
            joiners.append(joiner)
            items.append(self.relation())
        if len(items) == 1:
            return items[0]
        words = {joiner for joiner in joiners if joiner != ","}
        return Listing(tuple(items), words.pop() if len(words) == 1 else ",")

    def _joiner(self) -> str | None:
        """Take the separator that stands here: a comma, a word, or a comma followed by a word."""
        found: str | None = None
        while True:
            token = self.here
            if token.value in _SEPARATORS and token.kind == "operator" and found is None:
                found = ","
            elif (word := self._joining_word(token)) is not None and found in (None, ","):
                found = word
            else:
                return found
            self.advance()

    @staticmethod
    def _joining_word(token: Token) -> str | None:
        if token.kind == "text":
            words = token.value.replace(r"\ ", " ").strip(" ~,\\").casefold()
            return words if words in ("and", "or") else ("," if token.value.strip() in (",", ";") else None)
        if token.kind in ("word", "command"):
            return _JOINERS.get(token.value)
        return None

    def relation(self) -> Node:
        sides = [self.sets()]
        operators: list[str] = []
        while True:
            token = self.here
            operator = RELATIONS.get(token.value) if token.kind in ("operator", "command") else None
            if token.value == r"\not" and token.kind == "command" and self.peek().value == "=":
                self.advance()
                operator = "!="
            if token.value == r"\notin":
                raise Unreadable("a \\notin")
            if operator is None:
                break
            self.advance()
            operators.append(operator)
            sides.append(self.sets())
        node = Relation(tuple(operators), tuple(sides)) if operators else sides[0]
        return self._modulo(node)

    def _modulo(self, node: Node) -> Node:
        r"""What is congruent, and to which modulus: 3 \pmod{5}."""
        if self.here.value in (r"\pmod", r"\mod", r"\bmod", "mod"):
            self.advance()
            return Modulo(node, self.argument())
        if self.is_operator("(") and self.peek().value.strip() in ("mod", r"\mod", r"\bmod"):
            self.advance()
            self.advance()
            modulus = self.sum()
            self.expect(")")
            return Modulo(node, modulus)
        return node

    def sets(self) -> Node:
        left = self.ratio()
        while True:
            token = self.here
            operator = _SET_OPERATIONS.get(token.value) if token.kind == "command" else None
            if token.kind == "word" and token.value == "U":
                operator = "union"
            if token.kind == "symbol" and token.value == "U" and self.is_set(left):
                operator = "union"
            if operator is None:
                return left
            self.advance()
            left = SetOperation(operator, left, self.ratio())

    @staticmethod
    def is_set(node: Node) -> bool:
        return isinstance(node, (SetOperation, NamedSet)) or type(node).__name__ in ("Bracket", "SetOf")

    def ratio(self) -> Node:
        items = [self.sum()]
        while self.colon_is_ratio and (self.is_operator(":") or self._is_to()):
            self.advance()
            items.append(self.sum())
        return Ratio(tuple(items)) if len(items) > 1 else items[0]

    def _is_to(self) -> bool:
        token = self.here
        return token.kind in ("word", "text") and token.value.strip(" ~\\") == "to"

    def sum(self) -> Node:
        terms: list[Node] = []
        first = True
        while True:
            token = self.here
            sign = token.value if token.value in ("+", "-", r"\pm", r"\mp") else None
            if sign is None and token.value == "+-":
                sign = r"\pm"
            if sign is None and not first:
                break
            if sign is not None:
                self.advance()
            if sign == "+" and self.is_operator("-") and not first and self.peek().value == "/":
                raise Unreadable("+-/")
            terms.append(self._signed(sign))
            first = False
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def _signed(self, sign: str | None) -> Node:
        if sign == "+" and self.is_operator("/") and self.peek().value == "-":
            # "+/-" in plain text
            self.advance()
            self.advance()
            return PlusMinus(self.term(), flipped=False)
        if self.here.value in ("-", "+") and sign is not None:
            # A second sign, as in "2 + -3" or "--3": taken with the term.
            inner = self.here.value
            self.advance()
            term = self.term()
            term = self.negative(term) if inner == "-" else term
        else:
            term = self.term()
        if sign == "-":
            return self.negative(term)
        if sign in (r"\pm", r"\mp"):
            return PlusMinus(term, flipped=sign == r"\mp")
        return term

    def term(self) -> Node:
        result = self.power()
        while True:
            token = self.here
            if token.value in _TIMES and token.kind in ("operator", "command"):
                self.advance()
                result = self._times(result, self._factor())
            elif token.value in _DIVIDED and token.kind in ("operator", "command"):
                self.advance()
                result = Quotient(result, self._factor())
            elif self.starts_primary() and self.may_follow(result):
                result = self._times(result, self.power())
            else:
                return result

    def _factor(self) -> Node:
        """A factor after an explicit sign, which may itself be negative: 2 \\cdot -3."""
        if self.is_operator("-"):
            self.advance()
            return self.negative(self.power())
        if self.is_operator("+"):
            self.advance()
        return self.power()

    @staticmethod
    def _times(left: Node, right: Node) -> Node:
        if isinstance(left, Constant) and left.name == "infinity":
            raise Unreadable("a product with infinity")
        factors = left.factors if isinstance(left, Product) else (left,)
        return Product((*factors, right))
