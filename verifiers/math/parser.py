r"""From tokens to the tree: a recursive descent parser for the LaTeX and plain text of answers.

    whole     := listing [\over listing]
    listing   := relation ((',' | ';' | and | or) relation)*
    relation  := sets (('=' | '<' | \in | ...) sets)* [\pmod argument]
    sets      := ratio ((\cup | \cap | \setminus) ratio)*
    ratio     := sum (':' sum)*
    sum       := ['+' | '-' | \pm] term (('+' | '-' | \pm | \mp) term)*
    term      := power (('*' | '/' | nothing) power)*
    power     := primary postfix* ['^' argument postfix*]*
    postfix   := '!' | '%' | degrees | million | "'" | '_' base
    primary   := number | letter | word | text | bracket | function | command | env | operation
    argument  := '{' whole '}' | sign argument | number | first letter of a word | primary
    single    := first digit of a number | argument
    bracket   := '(' listing ')' | '[' listing ')' | \{ listing [\mid listing] \} | '|' sum '|' | ...
    function  := \sin ['^' argument] (bracket | '{' whole '}' | power*)
    command   := \frac single single | \sqrt ['[' sum ']'] argument | \overline name | ...
    env       := \begin{name} row (\\ row)* \end{name}; a row holds relations, a listing or a case
    operation := \sum_{k=1}^n body | \int_a^b body dx | \lim_{x \to a} body | \frac{d}{dx} body

Reads all of the text or raises Unreadable; never guesses past a symbol it does not know. Bounded: at most
MAX_TOKENS tokens and MAX_DEPTH nested groups.

Longer than a file should be, because the grammar is one circle: a bracket holds a listing, an integral a sum,
a matrix relations. Wherever it is cut, each half needs the other. What needs no grammar is elsewhere: tables
in `words`, questions to the tokens in `cursor`, `literals` and `calculus`."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from verifiers.math.cursor import (
    Cursor,
    find_differential,
    letter_of_series,
    take_arrow,
    take_derivative_sign,
    take_letter,
    take_out,
    take_side,
)
from verifiers.math.letters import LettersAre, run_is
from verifiers.math.literals import (
    based,
    is_proper_fraction,
    read_number,
    scaled,
    take_decimal_end,
    take_minutes,
    take_plain_fraction,
)
from verifiers.math.nodes import (
    Bracket,
    Constant,
    FunctionCall,
    Listing,
    Matrix,
    Modulo,
    NamedSet,
    Node,
    Number,
    Operation,
    Percent,
    Piecewise,
    PlusMinus,
    Power,
    Product,
    Quotient,
    Ratio,
    Relation,
    SetBuilder,
    SetOf,
    SetOperation,
    Sum,
    Symbol,
    Text,
)
from verifiers.math.tokens import VECTOR, Token, Unreadable, plain_characters, tokenize
from verifiers.math.trees import INFINITY, MINUS_ONE, bind, contains, negative, walk
from verifiers.math.words import (
    BINOMIALS,
    CONSTANTS,
    DEGREE_SIGNS,
    DIVISION_SIGNS,
    FRACTIONS,
    FUNCTIONS,
    GREEK,
    JOINERS,
    MATRICES,
    MODULO_SIGNS,
    NAMED_SETS,
    OWN_FUNCTIONS,
    PLAIN_ENVIRONMENTS,
    RELATIONS,
    SET_OPERATIONS,
    SIGNS,
    TEN_POWERS,
    TIMES_SIGNS,
    clean_words,
    fused_function,
)

MAX_DEPTH = 40
_INVERTIBLE = frozenset(map(Symbol, "fgh"))
"""f^{-1}(x) is the inverse function at x."""
COMPLEX_LETTERS = frozenset("zwi")
"""A line over these alone is the conjugate; over others it is a segment or a mean."""
_T = TypeVar("_T")


def parse_answer(text: str) -> Node:
    """The tree of one answer. Raises Unreadable."""
    tokens = tokenize(plain_characters(text))
    if not tokens:
        raise Unreadable("nothing is written")
    return parse_tokens(tokens)


def parse_tokens(tokens: list[Token], *, short_words: bool = True) -> Node:
    """The tree of all of these tokens, which are changed on the way. Raises Unreadable.

    `short_words`: whether a word of two or three letters that is an item of a list, or all there is, is
    text; else it is a product of letters."""
    has_partial = r"\partial" in [token.value for token in tokens]
    parser = Parser(tokens, short_words=short_words)
    node = parser.whole()
    parser.expect_end()
    if has_partial and contains(node, Symbol("partial")):
        raise Unreadable("a \\partial that is part of no derivative")
    return node


class Parser(Cursor):
    """Each method takes the tokens of the production that it is named after, and returns its tree."""

    def __init__(
        self,
        tokens: list[Token],
        *,
        depth: int = 0,
        index_letters: tuple[str, ...] = (),
        short_words: bool = True,
    ) -> None:
        super().__init__(tokens)
        self._short_words = short_words
        self._depth = depth
        self._bars = 0
        """Open | at this level: the next one closes."""
        self._brackets = 0
        """Open round and square brackets, where a [ may close an interval."""
        self._colon_is_ratio = True
        self._index_letters = index_letters
        """Letters that an operation around this place binds: i is the index of \\sum_{i=1} there."""

    # From a listing down to a power

    def whole(self) -> Node:
        node = self.listing()
        if self.take(r"\over"):
            return Quotient(node, self.listing())
        return FunctionCall("binomial", (node, self.listing())) if self.take(r"\choose") else node

    def listing(self) -> Node:
        first = self.relation()
        if self.at_end_of_group():
            return first
        items, joiners = [first], set()
        # A comma at the end, as in (5,), says nothing.
        while (joiner := self._joiner()) is not None and not self.at_end_of_group():
            joiners.add(joiner)
            items.append(self.relation())
        if len(items) == 1:
            return first
        words = joiners - {","}
        return Listing(tuple(items), words.pop() if len(words) == 1 else ",")

    def _joiner(self) -> str | None:
        """Take the separator that stands here: a comma, a word, or a comma followed by a word."""
        found: str | None = None
        while True:
            token = self.here
            if token.value in (",", ";") and token.kind == "operator" and found is None:
                found = ","
            elif (word := _joining_word(token)) is not None and found in (None, ","):
                found = word
            else:
                return found
            self.advance()

    def relation(self) -> Node:
        first = self.sets()
        if self.at_end_of_group():
            return first
        sides, operators = [first], []
        while (operator := self._relation_sign()) is not None:
            operators.append(operator)
            sides.append(self.sets())
        node = Relation(tuple(operators), tuple(sides)) if operators else first
        return self._modulo(node)

    def _relation_sign(self) -> str | None:
        token = self.here
        if token.value == r"\notin":
            raise Unreadable("a \\notin")
        if token.kind not in ("operator", "command"):
            return None
        operator = RELATIONS.get(token.value)
        if token.value == r"\not" and self.peek().value == "=":
            self.advance()
            operator = "!="
        if operator is not None:
            self.advance()
        return operator

    def _modulo(self, node: Node) -> Node:
        r"""A congruence with its modulus: 3 \pmod{5}."""
        if self.here.value in MODULO_SIGNS or self.here.value == r"\pmod":
            self.advance()
            return Modulo(node, self.argument())
        if self.sees("(") and self.peek().value.strip() in MODULO_SIGNS:
            self.go_to(self.at + 2)
            modulus = self.sum()
            self.expect(")")
            return Modulo(node, modulus)
        return node

    def sets(self) -> Node:
        left = self.ratio()
        while (operator := self._set_operator(left)) is not None:
            self.advance()
            left = SetOperation(operator, left, self.ratio())
        return left

    def _set_operator(self, left: Node) -> str | None:
        token = self.here
        if token.kind == "command":
            return SET_OPERATIONS.get(token.value)
        is_letter = token.kind == "symbol" and isinstance(left, (SetOperation, NamedSet, Bracket, SetOf))
        return "union" if token.value == "U" and (is_letter or token.kind == "word") else None

    def ratio(self) -> Node:
        items = [self.sum()]
        while self._colon_is_ratio and (self.sees(":") or _is_to(self.here)):
            self.advance()
            items.append(self.sum())
        return Ratio(tuple(items)) if len(items) > 1 else items[0]

    def sum(self) -> Node:
        first = self._signed(self._sign())
        if self.at_end_of_group():
            return first
        terms = [first]
        while (sign := self._sign()) is not None:
            if sign == "+" and self.sees("-") and self.peek().value == "/":
                raise Unreadable("+-/")
            terms.append(self._signed(sign))
        return first if len(terms) == 1 else Sum(tuple(terms))

    def _sign(self) -> str | None:
        self.unwrap_operator()
        sign = SIGNS.get(self.here.value)
        if sign is not None:
            self.advance()
        return sign

    def _signed(self, sign: str | None) -> Node:
        """The term after a sign that is already taken."""
        if sign == "+" and self.sees("/") and self.peek().value == "-":
            # "+/-" in plain text
            self.go_to(self.at + 2)
            return PlusMinus(self.term(), flipped=False)
        second = None
        if sign is not None:
            # A second sign, as in "2 + -3" or "--3", is taken with the term.
            self.unwrap_operator()
            second = self.advance().value if self.here.value in ("-", "+") else None
        term = negative(self.term()) if second == "-" else self.term()
        if sign == "-":
            return negative(term)
        return PlusMinus(term, flipped=sign == r"\mp") if sign in (r"\pm", r"\mp") else term

    def term(self) -> Node:
        result = self.power()
        while True:
            self.unwrap_operator()
            token = self.here
            if self.at_end_of_group():
                return result
            if token.value in TIMES_SIGNS and token.kind in ("operator", "command"):
                self.advance()
                result = _typed_product(token.value, result, self._factor())
            elif token.value in DIVISION_SIGNS and token.kind in ("operator", "command"):
                self.advance()
                result = typed_quotient(result, self._factor())
            elif self.starts_primary() and self.may_follow(result):
                result = _times(result, self.power())
            else:
                return result

    def _factor(self) -> Node:
        """A factor after an explicit sign, which may itself be negative: 2 \\cdot -3."""
        self.unwrap_operator()
        if self.take("-"):
            return negative(self.power())
        self.take("+")
        return self.power()

    def power(self) -> Node:
        base = self._postfix(self.primary())
        while self.take_power_sign():
            if self.here.value in DEGREE_SIGNS:
                self.advance()
                base = take_minutes(self, base)
            elif self.sees("{") and self.peek().value in DEGREE_SIGNS and self.peek(2).value == "}":
                self.go_to(self.at + 3)
                base = take_minutes(self, base)
            elif self.here.value in ("*", r"\ast") and is_complex_letter(base):
                self.advance()
                base = FunctionCall("conjugate", (base,))
            else:
                exponent = self.argument()
                if exponent == MINUS_ONE and base in _INVERTIBLE and self.sees("("):
                    base = FunctionCall(f"{base.name}^-1", _items(self._round()), known=False)
                else:
                    base = self._postfix(Power(base, exponent))
        return base

    def _postfix(self, node: Node) -> Node:
        while (token := self.here).kind in ("operator", "command", "word", "text"):
            if token.kind in ("word", "text"):
                if (power := TEN_POWERS.get(token.value.strip(" ~"))) is None:
                    break
                self.advance()
                node = scaled(node, 10**power)
            elif token.value == "!":
                self.advance()
                is_double = self.sees("!") and not self.here.spaced and self.take("!")
                node = FunctionCall("double_factorial" if is_double else "factorial", (node,))
            elif token.value in ("%", r"\%"):
                self.advance()
                node = Percent(node)
            elif token.value in DEGREE_SIGNS and token.kind == "command":
                if isinstance(node, Symbol):
                    raise Unreadable("a composition of functions")
                self.advance()
                node = take_minutes(self, node)
            elif token.value == "'" and isinstance(node, Symbol):
                self.advance()
                node = Symbol(node.name + "'")
            elif token.value == "_" and isinstance(node, Number):
                self.advance()
                node = based(node, self.raw_argument())
            else:
                break
        return node

    # What commands and signs apply to

    def argument(self) -> Node:
        """Argument of a command or ^: a group, or one symbol with its sign."""
        if self.sees("{"):
            return self._braces()
        if self.take("-"):
            return negative(self.argument())
        if self.take("+"):
            return self.argument()
        if self.here.kind == "word":
            return self._first_letter()
        if self.sees("("):
            return self.primary()
        # Not a mixed number: 2^3\\frac12 has the exponent 3.
        node = read_number(self.advance()) if self.here.kind == "number" else self.primary()
        return self._postfix(node) if self.sees("!") else node

    def _single(self) -> Node:
        r"""The argument of \frac without braces: one digit of \frac12."""
        token = self.here
        if token.kind == "number" and len(token.value) > 1 and token.value.isdecimal():
            self.tokens[self.at] = self.here = Token("number", token.value[1:])
            return Number(Fraction(int(token.value[0])))
        return self.argument()

    def _first_letter(self) -> Node:
        word = self.here.value
        if word in FUNCTIONS or word in CONSTANTS:
            return self.primary()
        rest = word[1:]
        self.tokens[self.at] = self.here = Token("word" if len(rest) > 1 else "symbol", rest)
        return self._letter(word[0])

    def _group(self, read: Callable[[], Node], *, bars: int = 0) -> Node:
        """Runs `read` one level deeper, with `bars` open bars there."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} nested groups")
        outer, self._bars = self._bars, bars
        node = read()
        self._bars = outer
        self._depth -= 1
        return node

    # Primaries

    def starts_primary(self) -> bool:
        token = self.here
        match token.kind:
            case "number" | "symbol" | "grouped" | "function":
                return True
            case "word":
                return token.value not in ("and", "or", "to", "U", "mod", "if", "for", *TEN_POWERS)
            case "text":
                return False
            case "command":
                name = token.value[1:]
                if name == "|":
                    return self._bars == 0
                return token.value in _READERS or name in FUNCTIONS or name in GREEK or name in CONSTANTS
        match token.value:
            case "(":
                return self.peek().value.strip() not in MODULO_SIGNS
            case "|":
                return self._bars == 0
            case "[":
                return token.kind == "operator"
        return token.value == "{"

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
        return not isinstance(left, (NamedSet, Text, SetOf)) and not (
            isinstance(left, Bracket) and token.value == "U"
        )

    def primary(self) -> Node:
        token = self.here
        match token.kind:
            case "number" | "grouped":
                return self._literal()
            case "symbol":
                self.advance()
                return self._letter(token.value)
            case "word":
                return self._word()
            case "text":
                self.advance()
                return self._text(token.value)
            case "function":
                self.advance()
                name = token.value.strip()
                return self._function(FUNCTIONS[name]) if name in FUNCTIONS else self._text(name)
        reader = _READERS.get(token.value)
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

    def _literal(self) -> Node:
        number = read_number(self.advance())
        decimal = take_decimal_end(self, number)
        if decimal is not None:
            return decimal
        return self._mixed(number) if number.places is None else number

    def _mixed(self, whole: Number) -> Node:
        r"""2\frac{1}{2} and 2 1/2: a whole number and a proper fraction of literal integers, added."""
        if self.here.value not in FRACTIONS:
            plain = take_plain_fraction(self)
            return whole if plain is None else Sum((whole, plain))
        start, saved = self.at, self.tokens[self.at : self.at + 4]
        fraction = self.primary()
        if is_proper_fraction(fraction):
            return Sum((whole, fraction))
        # Reading \frac12 has split the 12.
        self.tokens[start : start + 4] = saved
        self.go_to(start)
        return whole

    # Letters, words and functions

    def _letter(self, name: str, *, is_last: bool = True) -> Node:
        """`is_last`: what follows in the tokens is next to this letter, not to a later one of its word."""
        if name in ("e", "pi"):
            return Constant(name)
        if name in ("i", "imath") and not self.sees("_") and name not in self._index_letters:
            return Constant("i")
        if self.take("_"):
            name = f"{name}_{clean_words(self.raw_argument())}"
        bare = name.partition("_")[0].rstrip("'")
        while self.take("'"):
            name += "'"
        if is_last and self.sees("(") and (bare in OWN_FUNCTIONS or self._applies()):
            group = self._round()
            arguments = group.items if isinstance(group, Bracket) else (group,)
            if name == "C" and len(arguments) == 2:
                return FunctionCall("binomial", arguments)
            return FunctionCall(name, arguments, known=False)
        return Symbol(name)

    def _applies(self) -> bool:
        """Whether the brackets after a letter hold arguments, as in d(n) and C(5, 2): letters alone, numbers
        between commas. k(n+1) and k(2n) are products."""
        inside = list(itertools.takewhile(lambda token: token.value != ")", self.tokens[self.at + 1 :]))
        if self.tokens[self.at - 1].value == "C" and any(token.value == "," for token in inside):
            return True
        kinds = [token.kind if token.value[1:] not in GREEK else "symbol" for token in inside]
        commas = [token.value == "," for token in inside[1::2]]
        is_one = kinds == ["symbol"] or [token.value for token in inside] == ["0"]
        return (
            bool(inside)
            and len(inside) % 2 == 1
            and all(commas)
            and (set(kinds[::2]) <= {"symbol", "number"} and (bool(commas) or is_one))
        )

    def _word(self) -> Node:
        word = self.advance().value
        if word in FUNCTIONS and not (FUNCTIONS[word] == "trace" and not self.sees("(")):
            return self._function(FUNCTIONS[word])
        if word in CONSTANTS:
            return Constant(CONSTANTS[word])
        if word in GREEK:
            return self._letter(GREEK[word])
        function = fused_function(word)
        if function is not None:
            # "sinx": the letter follows the function.
            self.tokens.insert(self.at, Token("symbol", word[-1], spaced=True))
            self.go_to(self.at)
            return self._function(FUNCTIONS[function])
        if len(word) > 3 or self.sees("_") or (self._short_words and self._is_item(word)):
            return Text(clean_words(word))
        letters = [self._letter(letter, is_last=False) for letter in word[:-1]]
        # The last letter takes what follows it: the subscript, the power of xy^2 is y's.
        last = self._letter(word[-1])
        if self.take_power_sign():
            last = Power(last, self.argument())
        return Product((*letters, last))

    def _is_item(self, word: str) -> bool:
        """Whether the word that was just taken is one in the sense of `letters`, and an item of its own."""
        before = self.tokens[self.at - 2] if self.at > 1 else None
        begins, ends = before is None, self.here.kind == "end"
        is_first, is_next = before is not None and _separates(before), _separates(self.here)
        opens = before is not None and before.value in ("(", "[", r"\{")
        closes = self.here.value in (")", "]", r"\}")
        # (act) alone is a factor in brackets.
        stands_alone = (
            (begins and ends) or (is_first and (is_next or ends or closes)) or (is_next and (begins or opens))
        )
        return stands_alone and run_is(word) is LettersAre.WORD

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

    def _function(self, name: str) -> Node:
        if name == "sqrt" and self.sees("["):
            return self._root()
        base: Node | None = None
        exponent: Node | None = None
        for _ in range(2):
            if name in ("log", "ln", "max", "min") and self.take("_"):
                base = self.argument()
            elif exponent is None and name != "sqrt" and self.take_power_sign():
                exponent = self.argument()
        arguments = self._arguments(name)
        if exponent == MINUS_ONE and "a" + name in FUNCTIONS.values():
            name, exponent = "a" + name, None
        if name == "log" and base is not None:
            arguments = (*arguments, base)
        call: Node = FunctionCall(name, arguments)
        if name == "cis":
            turn = Product((Constant("i"), FunctionCall("sin", arguments)))
            call = Sum((FunctionCall("cos", arguments), turn))
        return call if exponent is None else Power(call, exponent)

    def _arguments(self, name: str) -> tuple[Node, ...]:
        if self.sees("("):
            group = self._round()
            return group.items if isinstance(group, Bracket) else (group,)
        if self.sees(r"\{") and name in ("max", "min", "gcd", "lcm"):
            members = self.primary()
            return members.items if isinstance(members, SetOf) else (members,)
        if self.sees("{") or name in ("sqrt", "cbrt"):
            return _items(self.argument())
        # \sin 2x: factors without a sign, up to the next function.
        factors = [self.power()]
        while self.starts_primary() and self.may_follow(factors[-1]) and not _is_function(self.here):
            if self.here.value in ("(", "["):
                break
            factors.append(self.power())
        return (factors[0] if len(factors) == 1 else Product(tuple(factors)),)

    def _root(self) -> Node:
        self.expect("[")
        degree = self._group(self.sum)
        self.expect("]")
        return FunctionCall("root", (self.argument(), degree))

    # Brackets

    def _braces(self) -> Node:
        self.expect("{")
        node = self._group(self.whole)
        self.expect("}")
        return node

    def _round(self) -> Node:
        return self._bracket("(", (")", "]"))

    def _outward(self) -> Node:
        """]1, 2[: an open interval, in the French way."""
        node = self._bracket("]", ("[", "]"))
        if not isinstance(node, Bracket):
            raise Unreadable("a lone ]")
        return Bracket("(", ")" if node.closing == "[" else "]", node.items)

    def _bracket(self, opening: str, closings: tuple[str, ...]) -> Node:
        self.expect(opening)
        self._brackets += 1
        inner = self._group(self.listing)
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

    def _angle(self) -> Node:
        self.advance()
        items = _items(self._group(self.listing))
        self.expect(r"\rangle")
        return Bracket("<", ">", items)

    def _set(self) -> Node:
        self.expect(r"\{")
        if self.take(r"\}"):
            return NamedSet("empty")
        ratio, self._colon_is_ratio = self._colon_is_ratio, False
        inner = self._group(self.listing, bars=1)
        condition: Node | None = None
        if self.take(r"\mid") or self.take("|") or self.take(":"):
            condition = self._group(self.listing)
        self._colon_is_ratio = ratio
        self.expect(r"\}")
        if condition is None:
            return SetOf(_items(inner))
        if isinstance(inner, Relation) and inner.operators == ("in",):
            # {x \in R | x > 2}: where x lives is one more condition.
            if inner.sides[1] != NamedSet("R"):
                condition = Listing((inner, *_items(condition)), "and")
            inner = inner.sides[0]
        return SetBuilder(inner, condition)

    def _bars_around(self) -> Node:
        """|x|: the absolute value. Inside, the next bar at this level closes."""
        opening = self.advance().value
        closing = {r"\lvert": r"\rvert", r"\lVert": r"\rVert"}.get(opening, opening)
        inner = self._group(self.sum, bars=self._bars + (opening in ("|", r"\|")))
        self.expect(closing)
        return FunctionCall("abs", (inner,))

    def _rounded(self) -> Node:
        name, closing = {r"\lfloor": ("floor", r"\rfloor"), r"\lceil": ("ceiling", r"\rceil")}[
            self.advance().value
        ]
        inner = self._group(self.sum)
        self.expect(closing)
        return FunctionCall(name, (inner,))

    # Commands

    def _fraction(self) -> Node:
        self.advance()
        derivative = self._derivative()
        if derivative is not None:
            return derivative
        top = self._single()
        return typed_quotient(top, self._single())

    def _binomial(self) -> Node:
        self.advance()
        top = self._single()
        return FunctionCall("binomial", (top, self._single()))

    def _square_root(self) -> Node:
        self.advance()
        return self._root() if self.sees("[") else FunctionCall("sqrt", (self.argument(),))

    def _overline(self) -> Node:
        self.advance()
        start = self.at
        name = self.raw_argument()
        if (letters := set(filter(str.isalpha, name))) and letters <= COMPLEX_LETTERS:
            self.go_to(start)
            return FunctionCall("conjugate", (self.argument(),))
        if not name.isalnum():
            raise Unreadable(f"a line over {name!r}")
        if name.isdecimal():
            raise Unreadable("a line over digits")
        return Symbol(f"overline {name}")

    def _marked(self) -> Node:
        r"""\angle ABC, \triangle ABC: one name."""
        mark = self.advance().value[1:]
        if self.sees("{"):
            return Symbol(f"{mark} {self.raw_argument()}")
        if self.here.kind not in ("word", "symbol"):
            raise Unreadable(f"a lone \\{mark}")
        return Symbol(f"{mark} {self.advance().value}")

    def _arrow(self) -> Node:
        r"""\vec{a}, \overrightarrow{AB}, \hat{p}: a letter with its type, and the subscript that follows."""
        mark = "hat " if self.advance().value in (r"\hat", r"\widehat") else VECTOR
        name = self.raw_argument().removeprefix("\\")
        if not (name.isalpha() or name == "0"):
            raise Unreadable(f"a mark over {name!r}")
        if mark == VECTOR and len(name) == 2 and name.isupper() and name[0] > name[1]:
            return negative(Symbol(mark + name[::-1]))
        return self._letter(mark + name)

    def _dotted(self) -> Node:
        r"""\dot{x}, \ddot{\theta}: a name, with the subscript that follows."""
        mark = self.advance().value[1:]
        name = self.raw_argument().removeprefix("\\")
        if not name.isalpha():
            raise Unreadable(f"dots over {name!r}")
        return self._letter(f"{mark} {name}")

    def _blackboard(self) -> Node:
        self.advance()
        name = self.raw_argument()
        if name not in NAMED_SETS:
            raise Unreadable(f"the set {name!r}")
        is_part = self.take("^") or self.take("_")
        return _part_of_set(name, self.raw_argument()) if is_part else NamedSet(name)

    def _empty_set(self) -> Node:
        self.advance()
        return NamedSet("empty")

    # Environments

    def _environment(self) -> Node:
        self.expect(r"\begin")
        name = self.raw_argument()
        if name == "array" and self.sees("{"):
            self.raw_argument()
        node: Node
        if name in PLAIN_ENVIRONMENTS or (name == "cases" and not self.environment_has("&")):
            # Formulas one below the other, all of which hold; & only aligns them.
            self.drop_from_environment("&")
            lines = self._rows(self.listing)
            node = lines[0] if len(lines) == 1 else Listing(lines, "and")
        elif name == "cases":
            node = Piecewise(self._rows(self._piece, may_be_empty=True))
        elif name in MATRICES:
            node = Matrix(self._rows(self._cells, kind="matrix"))
            if len({len(row) for row in node.rows}) != 1:
                raise Unreadable("a matrix with rows of different lengths")
            if name == "vmatrix":
                node = FunctionCall("det", (node,))
        else:
            raise Unreadable(f"the environment {name!r}")
        self.expect(r"\end")
        if self.raw_argument() != name:
            raise Unreadable(f"the environment {name!r} ends with another name")
        return node

    def _rows(
        self, read: Callable[[], _T], *, kind: str = "environment", may_be_empty: bool = False
    ) -> tuple[_T, ...]:
        r"""Runs `read` between one \\ and the next, up to \end."""
        rows: list[_T] = []
        while not self.sees(r"\end"):
            if kind == "matrix" and self.take(r"\hline"):
                continue
            rows.append(read())
            if not self.take(r"\\"):
                break
        if not rows and not may_be_empty:
            raise Unreadable(f"an empty {kind}")
        return tuple(rows)

    def _cells(self) -> tuple[Node, ...]:
        cells = [self.relation()]
        while self.take("&"):
            cells.append(self.relation())
        return tuple(cells)

    def _piece(self) -> tuple[Node, Node]:
        """A value and its condition, in cases."""
        value = self.relation()
        self.take(",")
        if not self.take("&"):
            raise Unreadable("cases without conditions")
        token = self.here
        if token.kind in ("text", "word"):
            words = token.value.strip(" ~").casefold().rstrip(",")
            if words in ("otherwise", "else"):
                self.advance()
                return value, Text("otherwise")
            if words in ("if", "for", "when"):
                self.advance()
        condition = self.listing()
        self.take(".")
        return value, condition

    # Operations on an expression in one letter. What a sign applies to, as it is meant in an answer: a factor
    # chain (\sum k + 1 is one more than the sum), and what follows as long as it still holds the letter.

    def _series(self) -> Node:
        r"""\sum_{k=1}^{n}, \prod_{k=1}^{n}, \sum_{k \ge 1}, \sum_{1 \le k \le n}."""
        name = {r"\sum": "sum", r"\prod": "product"}[self.advance().value]
        self.expect("_")
        self.expect("{")
        letter = letter_of_series(self, name)
        subscript = self._with_letter(letter, lambda: self._group(self.relation))
        low, high = _ends_of_series(subscript, letter, name)
        self.expect("}")
        if self.sees("^"):
            if high is not None:
                raise Unreadable(f"a {name} with two upper ends")
            self.advance()
            high = self.argument()
        if high is None:
            raise Unreadable(f"a {name} without an upper end")
        body, rest = self._with_letter(letter, lambda: self._body(letter))
        return _and_rest(bind(name, body, letter, (low, high)), rest)

    def _limit(self) -> Node:
        r"""\lim_{x \to a}, \lim_{x \to a^+}."""
        self.advance()
        self.expect("_")
        self.expect("{")
        letter = take_letter(self, "limit")
        take_arrow(self)
        side = take_side(self)
        point = self._group(self.sum)
        self.expect("}")
        body, rest = self._with_letter(letter, lambda: self._body(letter))
        return _and_rest(bind("limit", body, letter, (point, Number(Fraction(side)))), rest)

    def _integral(self) -> Node:
        r"""\int_a^b ... dx, \int ... dx; the dx may stand in the numerator of a fraction."""
        self.advance()
        ends: dict[str, Node] = {}
        for _ in range(2):
            mark = self.here.value
            if mark in ("_", "^") and self.here.kind == "operator" and mark not in ends:
                self.advance()
                ends[mark] = self.argument()
        if len(ends) == 1:
            raise Unreadable("an integral with one end")
        letter, body = self._integrand()
        if ends:
            return bind("integral", body, letter, (ends["_"], ends["^"]))
        return Operation("integral", body, (Symbol(letter),), None, letter)

    def _integrand(self) -> tuple[str, Node]:
        end = find_differential(self)
        if end.in_numerator:
            take_out(self, end)
            return end.letter, self._with_letter(end.letter, self.term)
        inner = Parser(
            self.tokens[self.at : end.at],
            depth=self._depth,
            index_letters=(*self._index_letters, end.letter),
            short_words=False,
        )
        body: Node = Number(Fraction(1))
        if inner.here.kind != "end":
            body = inner._group(inner.sum)
            inner.expect_end()
        self.go_to(end.at + end.size)
        return end.letter, body

    def _derivative(self) -> Node | None:
        r"""\frac{d}{dx} and \frac{d^2}{dx^2} before what they apply to, with d or \partial; else None, and
        the parser stays after \frac."""
        start = self.at
        sign = take_derivative_sign(self)
        if sign is None or not self.starts_primary():
            self.go_to(start)
            return None
        letter, order = sign
        body, rest = self._body(letter)
        parts = (Symbol(letter), Number(Fraction(order)))
        return _and_rest(Operation("derivative", body, parts, None, letter), rest)

    def _body(self, letter: str) -> tuple[Node, tuple[Node, ...]]:
        """The operand of the operation, and the terms after it that are not part of that."""
        start, tokens = self.at, list(self.tokens)
        body = negative(self.term()) if self.take("-") else self.term()
        if not (self.sees("+") or self.sees("-")):
            return body, ()
        after, left = self.at, list(self.tokens)
        self.tokens[:] = tokens
        self.go_to(start)
        whole = self.sum()
        terms = whole.terms if isinstance(whole, Sum) else (whole,)
        last = max((at for at, term in enumerate(terms) if contains(term, Symbol(letter))), default=0)
        if last == 0:
            self.tokens[:] = left
            self.go_to(after)
            return body, ()
        return Sum(terms[: last + 1]), terms[last + 1 :]

    def _with_letter(self, letter: str, read: Callable[[], _T]) -> _T:
        """Runs `read` with `letter` as only a letter, i and e too."""
        outer = self._index_letters
        self._index_letters = (*outer, letter)
        result = read()
        self._index_letters = outer
        return result


_READERS: dict[str, Callable[[Parser], Node]] = {
    "(": Parser._round,
    "[": lambda parser: parser._bracket("[", ("]", ")", "[")),
    "]": Parser._outward,
    "{": Parser._braces,
    r"\{": Parser._set,
    r"\langle": Parser._angle,
    **dict.fromkeys(("|", r"\|", r"\lvert", r"\lVert"), Parser._bars_around),
    **dict.fromkeys((r"\lfloor", r"\lceil"), Parser._rounded),
    **dict.fromkeys(FRACTIONS, Parser._fraction),
    **dict.fromkeys(BINOMIALS, Parser._binomial),
    r"\sqrt": Parser._square_root,
    **dict.fromkeys((r"\overline", r"\bar"), Parser._overline),
    **dict.fromkeys((r"\angle", r"\triangle"), Parser._marked),
    **dict.fromkeys((r"\dot", r"\ddot", r"\dddot"), Parser._dotted),
    **dict.fromkeys((r"\vec", r"\overrightarrow", r"\hat", r"\widehat"), Parser._arrow),
    r"\mathbb": Parser._blackboard,
    **dict.fromkeys((r"\emptyset", r"\varnothing"), Parser._empty_set),
    r"\begin": lambda parser: parser._group(parser._environment),
    **dict.fromkeys((r"\sum", r"\prod"), Parser._series),
    r"\int": Parser._integral,
    r"\lim": Parser._limit,
}


# What needs no tokens


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Listing) else (node,)


def _times(left: Node, right: Node) -> Node:
    match left:
        case Constant("infinity"):
            raise Unreadable("a product with infinity")
        case Product(factors):
            return Product((*factors, right))
    return Product((left, right))


def _typed_product(sign: str, left: Node, right: Node) -> Node:
    r"""The dot or cross product where both sides hold vectors. Else a product."""
    if sign in (r"\times", r"\cdot") and _has_vector(left) and _has_vector(right):
        return FunctionCall("cross" if sign == r"\times" else "dot", (left, right))
    return _times(left, right)


def _has_vector(node: Node) -> bool:
    return any(isinstance(item, Symbol) and item.name.startswith(VECTOR) for item in walk(node))


def typed_quotient(top: Node, bottom: Node) -> Node:
    r"""The derivative \frac{dy}{dx} or \frac{\partial^2 u}{\partial x^2} as one name, else the quotient."""
    match top, bottom:
        case Product((sign, Symbol(name))), Product((Symbol(d), below)) if d in ("d", "partial"):
            match sign, below:
                case Symbol(other), Symbol(letter) if other == d:
                    return Symbol(f"{d} {name}/{d} {letter}")
                case Power(Symbol(other), Number(order)), Power(Symbol(letter), Number(same)) if (
                    other == d and order == same
                ):
                    return Symbol(f"{d} {order} {name}/{d} {letter}")
    return Quotient(top, bottom)


def is_complex_letter(node: Node) -> bool:
    return isinstance(node, Symbol) and node.name.partition("_")[0] in ("z", "w")


def _separates(token: Token) -> bool:
    return token.value in (",", ";") or _joining_word(token) is not None


def _joining_word(token: Token) -> str | None:
    match token.kind:
        case "text":
            words = token.value.replace(r"\ ", " ").strip(" ~,\\").casefold()
            return words if words in ("and", "or") else ("," if token.value.strip() in (",", ";") else None)
        case "word" | "command":
            return JOINERS.get(token.value)
    return None


def _is_to(token: Token) -> bool:
    return token.kind in ("word", "text") and token.value.strip(" ~\\") == "to"


def _is_function(token: Token) -> bool:
    name = token.value[1:] if token.kind == "command" else token.value
    return token.kind in ("command", "word", "function") and name in FUNCTIONS and name != "sqrt"


def _part_of_set(name: str, mark: str) -> Node:
    r"""\mathbb{R}^+, \mathbb{Z}^*: the positive numbers, those without 0."""
    zero = Number(Fraction(0))
    match name, mark:
        case "R", "*" | r"\ast" | r"\times":
            return SetOperation("difference", NamedSet("R"), SetOf((zero,)))
        case "R", "+" | ">0":
            return Bracket("(", ")", (zero, INFINITY))
        case "R", "-" | "<0":
            return Bracket("(", ")", (negative(INFINITY), zero))
        case "Z" | "Q", "+" | "-" | "*":
            return NamedSet(name + mark)
    raise Unreadable(f"the set with the mark {mark!r}")


def _ends_of_series(node: Node, letter: str, name: str) -> tuple[Node, Node | None]:
    """The first and the last value of the letter; None for a last one that stands above the sign."""
    match node:
        case Relation(("=",), (Symbol(found), low)) if found == letter:
            return low, None
        case Relation((">=",), (Symbol(found), low)) if found == letter:
            return low, INFINITY
        case Relation(("<=", "<="), (low, Symbol(found), high)) if found == letter:
            return low, high
    raise Unreadable(f"a {name} over something else than a letter from one number to another")


def _and_rest(operation: Operation, rest: tuple[Node, ...]) -> Node:
    return Sum((operation, *rest)) if rest else operation
