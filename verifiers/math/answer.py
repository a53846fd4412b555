r"""From the text of an answer to what is compared: its readings, its unit, its words. Owns the clean-up
before the parser.

A number with thousands separators (1,234) is that number and never also a list."""

import re
from dataclasses import dataclass
from fractions import Fraction

from verifiers.box_context import end_of_group
from verifiers.extract import last_box
from verifiers.math.letters import (
    Letters,
    LettersAre,
    is_prose,
    letters_are,
    run_is,
    spaced_letters,
    with_qualifier,
)
from verifiers.math.literals import read_number
from verifiers.math.nodes import Node, Number, Opaque, Quotient, Text
from verifiers.math.parser import parse_tokens
from verifiers.math.texts import date_of, is_marked_formula
from verifiers.math.tokens import Token, Unreadable, plain_characters, split_label, tokenize, usual_notation
from verifiers.math.trees import negative
from verifiers.math.units import DEGREE, Unit, is_prefixed, known_unit, parse_unit
from verifiers.math.words import TEN_POWERS, clean_words, number_in_words

_PREFIX = re.compile(
    r"^(?:\\text(?:bf)?\s*\{)?\s*(?:the\s+)?(?:final\s+)?(?:answer|ans)(?![A-Za-z])(?:\s+is)?\s*[:=]?\s*\}?\s*"
    r"(?=[^\s}])",
    re.IGNORECASE,
)
_PLAIN_NUMBER = re.compile(r"([-+−]?)(\d{1,400})(?:\.(\d{1,400}))?(?:/(\d{1,200}))?")
_WRAPPERS = ((r"$$", r"$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_MAX_UNIT_TOKENS = 14
# Units in bare letters also where they stand against their number, or behind another value.
_PLAIN_SYMBOLS = frozenset("km cm mm dm um nm kg mg ms mL ml kJ kW kHz MHz kPa".split())
_CLOCK = re.compile(r"(?<![A-Za-z\\])([ap])\.\s?m\b\.?", re.IGNORECASE)
_END_MARKS = re.compile(r"(?<!\\)[.,;:]+$")
_DOTTED = re.compile(r"\d*\.\d+\.\.\.$")
_END_SPACE = re.compile(r"^(?:\s|~|\\[,;:! ])+|(?:\s|~|\\[,;:!]|\\(?=\s*$))+$")


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    """Without wrapping and end punctuation."""
    number: Fraction | None
    """The value, when the text is nothing but an integer, a fraction or a decimal."""
    words: str
    readings: tuple[Node, ...]
    """Empty when no reading was possible; `problem` says why."""
    unit: Unit | None
    problem: str = ""
    letters: LettersAre | None = None
    """The kind of an answer of letters alone: of a gold, whether its reading is a guess."""

    @property
    def is_chemical(self) -> bool:
        return is_marked_formula(self.text)


def strip_wrapping(text: str) -> str:
    r"""Without surrounding space, dollars, \( \), one pair of braces and the full stop."""
    while (inner := _unwrapped(text)) != text:
        text = inner
    return text


def _unwrapped(text: str) -> str:
    text = text.strip()
    if not (text.endswith("...") and _DOTTED.search(text)):
        text = _END_MARKS.sub("", text)
    text = _END_SPACE.sub("", text).lstrip(":").strip()
    for opening, closing in _WRAPPERS:
        if (
            len(text) >= len(opening) + len(closing)
            and text.startswith(opening)
            and text.endswith(closing)
            and opening not in text[len(opening) : -len(closing)]
        ):
            text = text[len(opening) : -len(closing)]
    is_group = text.startswith("{") and text.endswith("}") and end_of_group(text, 1, len(text)) == len(text)
    return text[1:-1] if is_group else text


def plain_number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal or a fraction of integers, written with nothing else."""
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is None or not text.isascii():
        return None
    sign, whole, decimals, bottom = match.groups()
    if bottom is not None and (decimals is not None or int(bottom) == 0):
        return None
    if decimals is None and bottom is None:
        return Fraction(int(sign + whole))
    return Fraction(
        int(sign + whole + (decimals or "")), int(bottom) if bottom else 10 ** len(decimals or "")
    )


_FRACTION_OF_UNITS = re.compile(
    r"\\[dt]?frac\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*\}"
    r"\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}(\^\{?\d\}?)?\s*\}"
)

_MICRO = re.compile(r"\\mu\s*(\\(?:text|mathrm)\s*\{)")
_OHM = re.compile(r"\\(?:text|mathrm)\s*\{\s*([nuμmkMG])\s*\}\s*\\Omega(?![A-Za-z])")


def read_answer(raw: str, *, letters: Letters = "auto", is_gold: bool = False) -> Answer:
    """The answer with its readings. Letters alone are read as text and as a product; for a gold only as what
    they are, by `letters` or else by `letters_are`."""
    number = plain_number(raw)
    if number is not None:
        return Answer(raw, number, raw, (_plain_node(raw, number),), None)
    text = strip_wrapping(usual_notation(plain_characters(raw)))
    text = _FRACTION_OF_UNITS.sub(r"\\text{\1/\2\3}", text)
    text = _OHM.sub(r"\\text{\1Ω}", _MICRO.sub(r"\1μ", text))
    if "\\boxed" in text or "\\fbox" in text:
        text = strip_wrapping(last_box(text) or text)
    number = plain_number(text)
    if number is not None:
        return Answer(text, number, text, (_plain_node(text, number),), None)
    text = _CLOCK.sub(r"\1m", strip_wrapping(_PREFIX.sub("", text)) or text)
    words = clean_words(text)
    labelled = split_label(text) if text.endswith(")") else None
    if labelled is not None and (label := parse_unit(labelled[1])) is not None:
        value = read_answer(labelled[0])
        return Answer(text, None, words, value.readings, label, value.problem)
    kind = letters_are(text)
    spoken = _spoken(words)
    if kind is None and spoken is None:
        readings, unit, problem = _formulas(text, (letters != "product",) if is_gold else (True, False))
        return Answer(text, number, words, readings, unit, problem)
    spaced = spaced_letters(text) if letters == "product" else None
    formulas, unit, problem = _formulas(spaced or text, () if spaced is None and is_prose(text) else (False,))
    if is_gold:
        if spoken is not None or not formulas or letters == "word":
            kind = LettersAre.WORD
        elif letters == "product":
            kind = LettersAre.PRODUCT
    as_text = () if kind is LettersAre.PRODUCT and is_gold else (spoken or Text(words),)
    as_formula = () if kind is LettersAre.WORD and is_gold else formulas
    return Answer(text, None, words, (*as_text, *as_formula), unit if as_formula else None, problem, kind)


def _spoken(words: str) -> Node | None:
    """A number in words, or a date as `Text` in its one spelling; None for any other text."""
    number = number_in_words(words)
    if number is not None:
        return Number(Fraction(number))
    date = date_of(words)
    return None if date is None else Text(date)


def _formulas(text: str, short_words: tuple[bool, ...]) -> tuple[tuple[Node, ...], Unit | None, str]:
    """(readings, unit, problem) of the text as mathematics, one reading for each way to read short words, if
    there are some."""
    readings: list[Node] = []
    unit: Unit | None = None
    problem = ""
    try:
        if short_words:
            readings, unit = _read(text, short_words)
    except Unreadable as error:
        problem = str(error)
    if not readings and ("\\" in text or "..." in text) and (spelling := opaque_spelling(text)):
        readings.append(Opaque(spelling))
    return tuple(readings), unit, problem


_UNKNOWN_FORMULA = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|sup|inf|partial|nabla|to|rightarrow|Rightarrow|implies|iff|forall|exists"
    r"|parallel|perp|sim|cong|subset|subseteq|supset|supseteq|notin|aleph|dots|ldots|cdots|text|mathrm|mathcal|oplus"
    r"|otimes|neg|lnot|langle|mapsto|circ|star|mathbb|operatorname|Delta|triangle|angle|vec|det|begin)(?![A-Za-z])"
)
_IGNORED = re.compile(
    r"\\(?:left|right|displaystyle|limits|quad|qquad|text(?:rm|bf|it)?|math(?:rm|bf|it|cal)|operatorname)(?![A-Za-z])"
    r"|\\[,;:! ]|[\s~$]+"
)
_DOTS = re.compile(r"\\(?:dots[cbmio]?|cdots|ldots)(?![A-Za-z])|\.\.\.")
_BRACED_SYMBOL = re.compile(r"\{(\w)\}")


def opaque_spelling(text: str) -> str:
    """The spelling of an unreadable formula without styles, spaces and braces; empty when it is broken."""
    text = _DOTS.sub(r"\\ldots ", text)
    if not _UNKNOWN_FORMULA.search(text) or not _is_balanced(text) or text[-1] in "+-=*/^_<>(\\":
        return ""
    return _BRACED_SYMBOL.sub(r"\1", _IGNORED.sub("", text))


def _is_balanced(text: str) -> bool:
    depth = 0
    for mark in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += (mark == "{") - (mark == "}")
        if depth < 0:
            return False
    return depth == 0


def _plain_node(text: str, number: Fraction) -> Node:
    """The node of an integer, a decimal or a fraction as the parser makes it."""
    if "/" not in text and "." not in text:
        return Number(number)
    parts = [read_number(Token("number", part)) for part in text.lstrip("+-").split("/")]
    unsigned: Node = Quotient(*parts) if len(parts) > 1 else parts[0]
    return negative(unsigned) if text[0] == "-" else unsigned


def _read(text: str, short_words: tuple[bool, ...]) -> tuple[list[Node], Unit | None]:
    """The readings and the unit. Raises Unreadable when there is no reading."""
    tokens = with_qualifier(tokenize(text))
    if "," in text and any(map(_has_leading_zero, tokens[1:], tokens)):
        raise Unreadable("a list with a leading zero")
    tokens, currency = _without_currency(tokens)
    if tokens and tokens[0].value in _OPENING_SIGNS:
        tokens = tokens[1:]
    if (compound := _compound_quantity(tokens)) is not None:
        return [compound[0]], compound[1]
    tokens, unit = _without_units(tokens)
    if not tokens:
        raise Unreadable("nothing but a unit")
    if not any(map(_is_short_word, tokens)):
        short_words = short_words[:1]
    return _trees(tokens, short_words), unit or currency


def _trees(tokens: list[Token], short_words: tuple[bool, ...]) -> list[Node]:
    found: list[Node] = []
    for at, way in enumerate(short_words, start=1):
        try:
            found.append(parse_tokens(list(tokens), short_words=way))
        except Unreadable:
            if at == len(short_words) and not found:
                raise
    return found


_CURRENCIES = frozenset(r"$ euro pound yen rupee Rs USD EUR GBP gbp US\$ \$".split())
_SEPARATORS = frozenset(r"\le \leq \ge \geq \lt \gt \approx \pm \lor \land".split())
_OPENING_SIGNS = frozenset((r"\approx", r"\therefore", r"\Rightarrow", r"\implies", "=", r"\sim"))
_UNIT_LETTERS = frozenset("mgshLNJKWVA")
_SPELLINGS = {r"\cdot": "*", r"\$": "$", r"\circ": "°", r"\degree": "°", r"\Omega": "Ω"}


def _is_short_word(token: Token) -> bool:
    """Whether it is a word that could be a product too."""
    return token.kind == "word" and len(token.value) < 4 and run_is(token.value) is LettersAre.WORD


def _has_leading_zero(token: Token, before: Token) -> bool:
    """Whether a comma and a number such as 000 follow one another: digits of one number, not a list."""
    digits = token.value if token.kind == "number" and before.value == "," else ""
    return len(digits) > 1 and digits[0] == "0" and digits.isdecimal()


def _compound_quantity(tokens: list[Token]) -> tuple[Node, Unit] | None:
    """1 hour 30 minutes: numbers with units of one kind, added up in the last unit."""
    tokens = [token for token in tokens if token.value.strip() != "and"]
    if len(tokens) < 4 or len(tokens) % 2:
        return None
    total, last = Fraction(0), None
    for number, name in zip(tokens[::2], tokens[1::2], strict=True):
        unit = parse_unit(name.value) if name.kind in ("text", "word") else None
        if number.kind != "number" or unit is None or unit.nouns or len(unit.powers) != 1:
            return None
        if last is not None and (unit.powers != last.powers or unit.size >= last.size):
            return None
        total, last = total + read_number(number).value * unit.size, unit
    assert last is not None
    return Number(total / last.size), last


def _without_currency(tokens: list[Token]) -> tuple[list[Token], Unit | None]:
    """Drop each currency sign that stands before a number."""
    unit: Unit | None = None
    kept: list[Token] = []
    for position, token in enumerate(tokens):
        follows = tokens[position + 1] if position + 1 < len(tokens) else None
        name = {r"\$": "$", r"\pounds": "gbp"}.get(token.value, token.value)
        is_word = token.kind in ("text", "word") and token.value.strip().rstrip(".") in _CURRENCIES
        is_sign = name != token.value or is_word
        if is_sign and follows is not None and (follows.kind == "number" or follows.value in (".", "-")):
            unit = parse_unit(name)
            continue
        kept.append(token)
    return kept, unit


def _without_units(tokens: list[Token]) -> tuple[list[Token], Unit | None]:
    """Drop the unit at the end of each item of a listing; they must all be the same."""
    kept: list[Token] = []
    item: list[Token] = []
    units: list[Unit] = []
    depth = 0
    for token in [*tokens, None]:
        if token is not None:
            depth += (token.value in ("(", "[", r"\{", "{")) - (token.value in (")", "]", r"\}", "}"))
        ends = token is None or (depth == 0 and _separates(token))
        if not ends:
            assert token is not None
            item.append(token)
            continue
        value, unit = _split_unit(item)
        kept += value
        if unit is not None:
            units.append(unit)
        if token is not None:
            kept.append(token)
        item = []
    if any(unit != units[0] for unit in units):
        raise Unreadable("items with different units")
    return kept, units[0] if units else None


def _separates(token: Token) -> bool:
    if token.kind == "operator":
        return token.value in (",", ";", "=", "<", ">", ":")
    if token.kind == "command":
        return token.value in _SEPARATORS
    return token.kind in ("word", "text") and token.value.strip(" ~\\").casefold() in ("and", "or", "to")


def _split_unit(tokens: list[Token]) -> tuple[list[Token], Unit | None]:
    start = len(tokens)
    while start > 0 and len(tokens) - start < _MAX_UNIT_TOKENS and _may_be_unit(tokens, start - 1):
        start -= 1
    # The unit begins at a word; letters and exponents before the first word belong to the value.
    while start < len(tokens) and not _begins_unit(tokens, start):
        start += 1
    if start == 0 or start == len(tokens) or not _ends_value(tokens[start - 1]):
        return tokens, None
    unit = parse_unit(" ".join(_SPELLINGS.get(token.value, token.value) for token in tokens[start:]))
    if unit is not None and unit.powers == DEGREE:
        opening, *rest = map(Token, ["operator"] * 3 + ["command"], ["(", ")", "^", r"\circ"])
        return [opening, *tokens[:start], *rest], None
    return (tokens, None) if unit is None else (tokens[:start], unit)


def _may_be_unit(tokens: list[Token], at: int) -> bool:
    token = tokens[at]
    if token.kind in ("text", "word", "function"):
        return True
    if token.kind == "symbol":
        # A letter is a unit next to other units (km/h), or alone at the end after a space (5 m).
        return len(token.value) == 1 and known_unit(token.value)
    if token.kind == "number":
        return at > 0 and tokens[at - 1].value in ("^", "-") or (at > 1 and tokens[at - 1].value == "{")
    return token.value in ("/", "^", r"\cdot", "{", "}", "-", ".", r"\$", r"\circ", r"\degree", r"\Omega")


def _begins_unit(tokens: list[Token], at: int) -> bool:
    token = tokens[at]
    if token.value.strip(" ~") in TEN_POWERS:
        return False
    before = tokens[at - 1] if at else None
    if token.kind == "text":
        return not (len(token.value.strip()) == 1 and not known_unit(token.value.strip()))
    if token.kind == "function":
        return known_unit(token.value.strip())
    if token.kind == "word":
        after_number = before is not None and (before.kind == "number" or before.value in TEN_POWERS)
        if is_prefixed(token.value) and token.value not in _PLAIN_SYMBOLS:
            # 3 kN, but 3kT and \frac{3}{2} kT are products.
            return bool(after_number and token.spaced)
        return known_unit(token.value) or (after_number and token.spaced and len(token.value) > 3)
    if token.value in ("C", "F") and at == len(tokens) - 1 and at > 1:
        # 25^\circ C
        return r"\circ" in (tokens[at - 1].value, tokens[at - 2].value)
    if token.kind == "symbol" and before is not None and before.kind == "number" and token.spaced:
        alone = at == len(tokens) - 1
        of_units = at + 1 < len(tokens) and tokens[at + 1].value in ("/", "^") and at + 2 < len(tokens)
        return (
            known_unit(token.value)
            and token.value in _UNIT_LETTERS
            and (alone or (of_units and tokens[at + 1].value == "/" and known_unit(tokens[at + 2].value)))
        )
    if token.value == r"\Omega":
        return token.spaced and before is not None and before.kind == "number"
    return token.value == r"\$" and at == len(tokens) - 1


def _ends_value(token: Token) -> bool:
    return (
        token.kind in ("number", "symbol", "word")
        or token.value.strip(" ~") in TEN_POWERS
        or token.value in (")", "}", "]", r"\%", "!", r"\pi", "%")
        or (
            token.kind == "command"
            and token.value[1:].isalpha()
            and token.value not in (r"\cdot", r"\times", r"\frac")
        )
    )
