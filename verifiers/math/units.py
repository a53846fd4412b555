"""Units, currencies and counted things after a number. Owns what they mean and when two of them agree.

The rule: a unit that only one side writes is not compared (the task often fixes it). Two units must be the
same physical quantity; then the numbers are compared in a common unit (2 m = 200 cm, 1 N = 1 kg m/s^2).
Symbols keep their case (mW is not MW). Counted things must be the same words, and a word before a unit makes
another unit of it (light years)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product, zip_longest

from verifiers.math.nodes import (
    Constant,
    Degrees,
    Listing,
    Node,
    Number,
    Percent,
    Product,
    Quotient,
    Relation,
)
from verifiers.math.words import NUMBER_WORDS

# Symbols | names | definition in the units above it; without one it is a base of its own. With * the prefixes
# of SI may stand before it, with + they must.
_TABLE = """
*m|meter metre|; *s|second|; *g|gram gm|; *A|ampere amp|; *K|kelvin|; *mol|mole|;
*L l|liter litre|1/1000 m3; *N|newton|1000 g m s-2; *J|joule|N m; *W|watt|J s-1; *Pa|pascal|N m-2;
*Hz|hertz|s-1; +C|coulomb|A s; *V|volt|W A-1; *Ω|ohm|V A-1; +F|farad|A s V-1; *Wb|weber|V s;
*T|tesla|Wb m-2; +H|henry|Wb A-1; *Wh||3600 J; *Nm||N m; *VA||W; *Ah||3600 coulomb;
*bar|bar|100000 Pa; *eV|electronvolt|; *cal|calorie|;
*bit|bit|; +b|bit|bit; +B|byte|8 bit; in|inch inche|254/10000 m; ft|foot feet|12 in; yd|yard|3 ft;
mi|mile|1760 yd; nmi|nauticalmile|1852 m; ly|lightyear|9460730472580800 m; min|minute min|60 s;
h|hour hr|60 min; |sec|s; |day|24 h; wk|week wk|7 day; yr|year yr|; |month|1/12 year; |decade|10 year;
|century centurie|100 year; ha|hectare|10000 m2; |tonne metricton|1000000 g; |ton|; lb|lb|;
oz|ounce|1/16 lb; gal|gallon|; qt|quart|1/4 gallon; pt|pint|1/8 gallon; |cup|1/16 gallon;
floz|fluidounce|1/128 gallon; $|dollar usd buck|; ¢|cent|1/100 dollar; €|euro eur|; £|gbp|; ¥|yen jpy|;
₹|rupee rs inr|; |yuan rmb cny|; ° deg|degree deg|; rad|radian|; |acre|; |celsius|; |fahrenheit|; dB||;
|percent percentage pct|; |unit|; am||; pm||; mph||mi h-1; kmph kph kmh||1000 m h-1; rpm||min-1 revolution;
mps||m s-1; fps||ft s-1; cc||1/1000000 m3; sqft||ft2; |pound|; C||; F||
"""
_PREFIXES = {
    "p pico": -12, "n nano": -9, "u μ µ micro": -6, "m milli": -3, "c centi": -2, "d deci": -1, "h hecto": 2,
    "k kilo": 3, "M mega": 6, "G giga": 9, "T tera": 12, "f femto": -15,
}  # fmt: skip
# Names of several units; each of them may be meant.
_AMBIGUOUS = {
    "pound": ("lb", "gbp"),
    "ton": ("tonne",),
    "C": ("celsius", "coulomb"),
    "F": ("fahrenheit", "farad"),
    "pm": ("picometer",),
}
_Known = tuple[Fraction, dict[str, int]]
"""(size, powers of the bases)."""


def _read_table() -> tuple[dict[str, _Known], dict[str, _Known], dict[str, _Known]]:
    """(units by their symbols, by their symbols with a prefix, by their names)."""
    symbols: dict[str, _Known] = {}
    prefixed: dict[str, _Known] = {}
    names: dict[str, _Known] = {}
    for row in _TABLE.split(";"):
        head, words, definition = row.strip().split("|")
        spellings = head.lstrip("*+").split()
        base = (words.split() or spellings)[0]
        size, powers = Fraction(1), ({} if definition else {base: 1})
        for factor in definition.split():
            name, power = re.fullmatch(r"(\D*?)(-?\d*(?:/\d+)?)", factor).groups()  # type: ignore[union-attr]
            if not name:
                size *= Fraction(power)
                continue
            one, its_powers = symbols.get(name) or prefixed.get(name) or names.get(name) or (1, {name: 1})
            exponent = int(power or 1)
            size *= Fraction(one) ** exponent
            for item, times in its_powers.items():
                powers[item] = powers.get(item, 0) + times * exponent
        known = (size, {name: power for name, power in powers.items() if power})
        names |= dict.fromkeys(words.split(), known)
        if head[:1] != "+":
            symbols |= dict.fromkeys(spellings, known)
        if head[:1] in ("*", "+"):
            for prefix, exponent in _PREFIXES.items():
                *signs, word = prefix.split()
                scaled = (size * Fraction(10) ** exponent, known[1])
                prefixed |= {sign + spelling: scaled for sign in signs for spelling in spellings}
                names |= {word + name: scaled for name in words.split()}
    return symbols, prefixed, names


_SYMBOLS, _PREFIXED, _NAMES = _read_table()
_FOLDED: dict[str, _Known | None] = {}
"""Symbols with a prefix, the unit in small letters; None where two are spelled so."""
for _symbol, _known in _PREFIXED.items():
    _key = _symbol[0] + _symbol[1:].casefold()
    _FOLDED[_key] = _known if _FOLDED.get(_key, _known) == _known else None
_MODIFIERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_AFTERS = {"squared": 2, "cubed": 3}
_PREPOSITIONS = {"of", "in"}
_SAYS_NOTHING = _PREPOSITIONS | set(
    "the a an total each exactly more times whole full complete extra additional consecutive us".split()
)
# A phrase with one of these is a statement, not a thing that is counted.
_NOT_THINGS = frozenset(
    "or and not but maybe if than less least most is are was possibly perhaps either neither except minus "
    "plus wrong correct approximately about to through between unless otherwise no none never incorrect "
    "false hundred thousand million billion trillion twice thrice mod modulo base for when where with any "
    "all some only even odd positive negative over by divided multiplied added choose below above under "
    "off".split()
)
# Nouns that say how many things each one is: 42 pairs are not 42. "How many pairs?" lets an answer omit them.
_COLLECTIVES = {"pair", "pairs", "couple", "couples", "dozen", "dozens", "score", "gross", "brace", "braces"}
_PARTS = (
    "half halve third quarter fourth fifth sixth seventh eighth ninth tenth eleventh twelfth fifteenth "
    "thirteenth fourteenth seventeenth eighteenth nineteenth sixteenth twentieth hundredth thousandth "
    "millionth billionth trillionth"
)
# Three quarters, but a quarter is a coin as well.
_COINS = {"quarters"}
# Words that make another number of the one before them.
_MULTIPLIERS = {
    *_COLLECTIVES,
    *(form for part in _PARTS.split() for form in (part, part + "s")),
    *"factorial factorials double doubled triple tripled quadruple quadrupled halved squared cubed".split(),
    *"inverted reciprocal negated opposite lakh lakhs crore crores hundreds thousands millions".split(),
    *"billions tens trillions quadrillion quadrillions quintillion quintillions bn pi inverse".split(),
    *"squareroot fold".split(),
} - _COINS
# Third graders and double rooms are things; a third and a double are numbers.
_ADJECTIVES = {*_PARTS.split(), "double", "triple", "quadruple", "opposite", "inverse"} - {"half", "quarter"}
_COUNTED_PAIRS = {"pair", "pairs", "couple", "couples"}
_ORDERED = {"ordered", "unordered", "distinct", "different", "possible"}
_FOLD = re.compile(r"(?:two|three|four|five|six|seven|eight|nine|ten|twelve|hundred|thousand)-?fold")
_TIMES_WHAT = re.compile(
    rf"\btimes\W*(?:\d|(?:{'|'.join(sorted(NUMBER_WORDS))})\b|[a-z]\b(?<!a))", re.IGNORECASE
)
_SPACED_SIGN = re.compile(r"-\s+(?=\d)")
# ms^{-1} is m s^{-1}, not one over a millisecond.
_RUN_TOGETHER = re.compile(r"\b([kc]?m(?=[sh])|N(?=m))(?=[shm]\s*\^\s*-)")
_SPACES = re.compile(r"\\[,;:! ]|[\\~{}]")
_ONE_WORD = re.compile(
    r"\b(?:light|nautical|metric|fluid|electron)[\s-]+(?=(?:year|mile|ton|ounce|volt)s?\b)", re.IGNORECASE
)
# The scale of a temperature is its unit.
_DEGREES_OF = re.compile(
    r"(?:\bdegrees?\b|°|\^?\s*\bcirc\b)\s*(?=[CFK]\b|celsius|fahrenheit|kelvin)", re.IGNORECASE
)
# 12 in, 12 in^2 and 12 sq in, but 12 in all.
_INCH = re.compile(r"^\s*((?:sq|square|cu|cubic)?\.?\s*)\bin\b\.?(?=\s*(?:$|[\^/*]))")
_WORD = re.compile(r"[A-Za-z$€£¥₹¢°Ωμµ]+\.?|\^?\{?-?\d+\}?|[/*·]|\S")


@dataclass(frozen=True, slots=True)
class Unit:
    powers: tuple[tuple[str, int], ...]
    """(base unit or noun, exponent), sorted; empty for words that say nothing, such as "units"."""
    size: Fraction
    """How many base units one is."""
    nouns: frozenset[str]
    """The counted things among them, which have no size."""
    head: str = ""
    """The thing that is counted, of red apples: apple."""
    qualifiers: frozenset[str] = frozenset()
    """Nouns before a unit, which make another unit of it: business days."""
    multipliers: frozenset[str] = frozenset()
    """Words that make another number of it: pairs, halves, factorial."""


DEGREE = (("degree", 1),)
_RADIAN = (("radian", 1),)
_WITH_DEGREES = ("degree", "radian", "celsius", "fahrenheit", "C", "F", "kelvin")


def known_unit(word: str) -> bool:
    return _lookup(word) is not None or word.casefold() in _MODIFIERS


def is_prefixed(word: str) -> bool:
    """Whether it is a symbol with a prefix, mW, which as letters may also be a product."""
    return word in _PREFIXED and word not in _SYMBOLS


def _lookup(word: str) -> _Known | None:
    """Symbols keep their case, but for those that mean one thing in any, KG and MHZ; names do not."""
    word = word.rstrip(".")
    found = _SYMBOLS.get(word) or _PREFIXED.get(word)
    if found is not None or len(word) < 2:
        return found
    lower = word.casefold()
    for name in (lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if len(name) > 1 and name in _NAMES:
            return _NAMES[name]
    if lower == word:
        return None
    # No prefix is spelled K, C, D or H.
    word = word[0].casefold() + word[1:] if word[0] in "KCDH" else word
    return _PREFIXED.get(word) or _SYMBOLS.get(lower) or _FOLDED.get(word[0] + word[1:].casefold())


@lru_cache(maxsize=1024)
def parse_unit(text: str) -> Unit | None:
    """The unit that `text` names, or None when it is not a unit but a statement."""
    if _TIMES_WHAT.search(text):
        return None
    text = _SPACES.sub(" ", text.replace(r"\cdot", "*").replace(r"\Omega", "Ω"))
    text = _RUN_TOGETHER.sub(r"\1 ", _SPACED_SIGN.sub("-", text))
    text = _INCH.sub(r"\1inch", _DEGREES_OF.sub("", text))
    text = _ONE_WORD.sub(lambda match: match.group().strip(" -"), text)
    powers: dict[str, int] = {}
    size = Fraction(1)
    nouns: set[str] = set()
    phrases: list[list[str]] = [[]]
    qualifiers: set[str] = set()
    sign, modifier = 1, 1
    last: tuple[_Known, int] | None = None
    for piece in _WORD.findall(text):
        word = piece.rstrip(".")
        lower = word.casefold()
        power = _exponent(word) or _AFTERS.get(lower)
        if lower in ("/", "per"):
            sign = -1
            phrases.append([])
            continue
        if lower in ("*", "·", "^", "-", "(", ")"):
            continue
        if lower in _MODIFIERS:
            modifier = _MODIFIERS[lower]
            continue
        if power is not None:
            if last is None:
                return None
            known, times = last[0], last[1] * (power - 1)
        elif lower in _NOT_THINGS or not word.replace("'", "").isalpha() and word not in "$€£¥₹¢°Ωμµ":
            return None
        elif lower in _SAYS_NOTHING and word != "A":
            modifier = 1
            phrases += [[]] if lower in _PREPOSITIONS else []
            continue
        else:
            found = _lookup(word)
            if found is None:
                nouns.add(_noun(word))
                phrases[-1].append(word)
            else:
                qualifiers |= {_noun(noun) for noun in phrases[-1]}
            known, times = found or (Fraction(1), {_noun(word): 1}), modifier * sign
            last, modifier = (known, times), 1
        size *= known[0] ** times
        for name, exponent in known[1].items():
            powers[name] = powers.get(name, 0) + exponent * times
    if len(nouns) > 4:
        return None
    return Unit(
        _kept(powers), size, frozenset(nouns), _head(phrases[0]), frozenset(qualifiers), _multipliers(text)
    )


def _kept(powers: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def _head(words: list[str]) -> str:
    """The first plural of a phrase, or its last word: red apples, but apple trees."""
    plural = next((word for word in words if _noun(word) != word.casefold()), "")
    return _noun(plural or words[-1]) if words else ""


def _multipliers(text: str) -> frozenset[str]:
    words = re.findall(r"[a-z]+(?:-fold)?", text.casefold())
    # Meters per second squared are m/s^2; 5 squared is 25.
    words = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not (word in _AFTERS and before and known_unit(before))
    ]
    if not _ORDERED.isdisjoint(words):
        # 12 ordered pairs are counted one by one.
        words = [word for word in words if word not in _COUNTED_PAIRS]
    found = {
        word
        for word, following in zip_longest(words, words[1:], fillvalue="")
        if (word in _MULTIPLIERS and not (word in _ADJECTIVES and _is_thing(following)))
        or _FOLD.fullmatch(word)
    }
    if words and (words[-1] in NUMBER_WORDS or words[-1] in ("square", "cubic")):
        # 5 point five, 5 six, 5 square: no thing follows.
        found.add(words[-1])
    return frozenset(found)


def _is_thing(word: str) -> bool:
    return bool(word) and word not in _SAYS_NOTHING and word not in NUMBER_WORDS and word not in _MULTIPLIERS


def _exponent(piece: str) -> int | None:
    digits = piece.lstrip("^").strip("{}")
    if digits.lstrip("-").isdecimal() and digits.isascii() and len(digits) < 3:
        return int(digits)
    return None


def _noun(word: str) -> str:
    lower = word.casefold()
    irregular = {"people": "person", "men": "man", "women": "woman", "children": "child", "feet": "foot"}
    if lower in irregular:
        return irregular[lower]
    if lower.endswith("ies") and len(lower) > 4:
        return lower[:-3] + "y"
    return lower.removesuffix("s") if len(lower) > 3 and not lower.endswith("ss") else lower


def ratio_of_units(gold: Unit | None, response: Unit | None) -> Fraction | None:
    """The factor from the response's unit to the gold's; None when they are different quantities."""
    wanted = gold.multipliers if gold else frozenset()
    given = response.multipliers if response else frozenset()
    if wanted != given and not (response is None and wanted <= _COLLECTIVES):
        return None
    if gold is None or response is None or not gold.powers or not response.powers:
        return Fraction(1)
    if _is_generic(gold) is not _is_generic(response):
        return Fraction(1)
    ratios = (_ratio(*pair) for pair in product(_readings(gold), _readings(response)))
    return next((ratio for ratio in ratios if ratio is not None), None)


def _readings(unit: Unit) -> Iterator[Unit]:
    """The unit, and what else its words may mean: pounds of money and of weight."""
    yield unit
    for name, power in unit.powers:
        for meaning in _AMBIGUOUS.get(name, ()):
            size, powers = _NAMES[meaning]
            others = {other: exponent for other, exponent in unit.powers if other != name}
            for other, exponent in powers.items():
                others[other] = others.get(other, 0) + exponent * power
            yield replace(unit, powers=_kept(others), size=unit.size * size**power)


def _ratio(gold: Unit, response: Unit) -> Fraction | None:
    if gold.qualifiers != response.qualifiers:
        return None
    if gold.powers == response.powers:
        return response.size / gold.size
    if not (gold.nouns <= response.nouns or response.nouns <= gold.nouns):
        return None
    # "5 apples" and "5 red apples", "12 inches" and "12 inches of snow"; but what has a size or divides must
    # agree, as in "5 litres" and "5 litres per person".
    fixed = [
        tuple(item for item in unit.powers if item[0] not in unit.nouns or item[1] < 0)
        for unit in (gold, response)
    ]
    says_same = gold.head == response.head if gold.nouns and response.nouns else bool(fixed[0])
    return response.size / gold.size if fixed[0] == fixed[1] and says_same else None


def _is_generic(unit: Unit) -> bool:
    """Whether it only says "units", which agree with every real unit; square units are not units."""
    return all(name == "unit" for name, _ in unit.powers)


def is_other_kind(node: Node, unit: Unit | None) -> bool:
    """Whether a number that wears ° or % stands against a unit of something else."""
    last = node.sides[-1] if isinstance(node, Relation) else node
    allowed = _WITH_DEGREES if isinstance(last, Degrees) else ("percent",)
    if unit is None or not isinstance(last, (Degrees, Percent)):
        return False
    return any(name not in allowed for name, _ in unit.powers)


def in_degrees(node: Node, unit: Unit | None, other: Node) -> Node:
    """A value in radians as one in degrees where `other` is in degrees, whose sign a number may lack."""
    if unit is None or unit.powers != _RADIAN or not _has_degrees(other):
        return node
    match node:
        case Relation(operators, (*names, value)):
            return Relation(operators, (*names, in_degrees(value, unit, other)))
        case Listing(items, joined_by):
            return Listing(tuple(in_degrees(item, unit, other) for item in items), joined_by)
    return Degrees(Product((node, Quotient(Number(Fraction(180)), Constant("pi")))))


def _has_degrees(node: Node) -> bool:
    match node:
        case Relation(_, (*_, value)):
            return _has_degrees(value)
        case Listing(items):
            return any(map(_has_degrees, items))
    return isinstance(node, Degrees)
