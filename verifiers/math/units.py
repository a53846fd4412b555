"""Units, currencies and counted things after a number. Owns what they mean and when two of them agree.

The rule: a unit that only one side writes is not compared (the task often fixes it). Two units must be the
same physical quantity; then the numbers are compared in a common unit (2 m = 200 cm). Counted things must be
the same words."""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

_SCALED: dict[str, tuple[str, str]] = {
    # spelling: (size in the base unit, base unit)
    "m meter metre": ("1", "m"), "km kilometer kilometre": ("1000", "m"),
    "cm centimeter centimetre": ("1/100", "m"),
    "mm millimeter millimetre": ("1/1000", "m"), "dm decimeter decimetre": ("1/10", "m"),
    "um μm micrometer": ("1/1000000", "m"), "nm nanometer": ("1/1000000000", "m"),
    "in inch inche": ("254/10000", "m"), "ft foot feet": ("3048/10000", "m"), "yd yard": ("9144/10000", "m"),
    "mi mile": ("1609344/1000", "m"),
    "s sec second": ("1", "s"), "min minute": ("60", "s"), "h hr hour": ("3600", "s"), "day": ("86400", "s"),
    "week wk": ("604800", "s"), "ms millisecond": ("1/1000", "s"), "year yr": ("1", "year"),
    "month": ("1/12", "year"),
    "decade": ("10", "year"), "century": ("100", "year"),
    "g gram gm": ("1", "g"), "kg kilogram": ("1000", "g"), "mg milligram": ("1/1000", "g"),
    "ton tonne": ("1", "ton"),
    "lb pound lbs": ("1", "lb"), "oz ounce": ("1/16", "lb"),
    "L l liter litre": ("1", "L"), "mL ml milliliter millilitre": ("1/1000", "L"), "gal gallon": ("1",
    "gallon"),
    "quart qt": ("1/4", "gallon"), "pint pt": ("1/8", "gallon"), "cup": ("1/16", "gallon"),
    "dollar usd buck $": ("1", "dollar"), "cent ¢": ("1/100", "dollar"), "euro eur €": ("1", "euro"),
    "gbp £": ("1", "lb"), "yen jpy ¥": ("1", "yen"), "rupee rs inr ₹": ("1", "rupee"), "yuan rmb cny": ("1",
    "yuan"),
    "degree deg °": ("1", "degree"), "radian rad": ("1", "radian"), "acre": ("1", "acre"),
    "hectare ha": ("1", "hectare"),
    "K kelvin": ("1", "K"), "C celsius": ("1", "celsius"), "F fahrenheit": ("1", "fahrenheit"),
    "N newton": ("1", "N"), "J joule": ("1", "J"), "kJ kilojoule": ("1000", "J"), "W watt": ("1", "W"),
    "kW kilowatt": ("1000", "W"), "V volt": ("1", "V"), "A amp ampere": ("1", "A"), "Ω ohm": ("1", "ohm"),
    "Hz hertz": ("1", "Hz"), "kHz": ("1000", "Hz"), "MHz": ("1000000", "Hz"), "Pa pascal": ("1", "Pa"),
    "kPa": ("1000", "Pa"), "mol mole": ("1", "mol"), "eV": ("1", "eV"), "T tesla": ("1", "T"), "dB": ("1",
    "dB"),
    "bit": ("1", "bit"), "byte": ("8", "bit"), "percent percentage pct": ("1", "percent"),
    "unit": ("1", "unit"), "am": ("1", "am"), "pm": ("1", "pm"),
}  # fmt: skip
_KNOWN = {
    spelling: (Fraction(size), base)
    for spellings, (size, base) in _SCALED.items()
    for spelling in spellings.split()
}
_COMPOUND = {
    "mph": {"mi": 1, "h": -1}, "kmph": {"km": 1, "h": -1}, "kph": {"km": 1, "h": -1}, "kmh": {"km": 1,
    "h": -1},
    "rpm": {"revolution": 1, "min": -1}, "mps": {"m": 1, "s": -1}, "fps": {"ft": 1, "s": -1}, "cc": {"cm": 3},
    "sqft": {"ft": 2},
}  # fmt: skip
_MODIFIERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_AFTERS = {"squared": 2, "cubed": 3}
_SAYS_NOTHING = {"of", "the", "a", "an", "in", "total", "each", "exactly", "more", "times"}
# A phrase with one of these is a statement, not a thing that is counted.
_NOT_THINGS = {
    "or", "and", "not", "but", "maybe", "if", "than", "less", "least", "most", "is", "are", "was",
    "possibly",
    "perhaps", "either", "neither", "except", "minus", "plus", "wrong", "correct", "approximately",
    "about",
    "to", "through", "between", "unless", "otherwise", "no", "none", "never", "incorrect", "false", "hundred",
    "thousand", "million", "billion", "trillion", "twice", "thrice", "mod",
    "modulo",
    "base", "for", "when", "where", "with", "any", "all", "some", "only", "even", "odd", "positive",
    "negative", "over", "by", "divided", "multiplied", "added", "choose", "below", "above", "under", "off",
}  # fmt: skip
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
_NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety".split()
)
_COUNTED_PAIRS = {"pair", "pairs", "couple", "couples"}
_ORDERED = {"ordered", "unordered", "distinct", "different", "possible"}
_FOLD = re.compile(r"(?:two|three|four|five|six|seven|eight|nine|ten|twelve|hundred|thousand)-?fold")
_TIMES_WHAT = re.compile(rf"\btimes\W*(?:\d|(?:{'|'.join(sorted(_NUMBERS))})\b|[a-z]\b(?<!a))", re.IGNORECASE)
_SPACES = re.compile(r"\\[,;:! ]")
_WORD = re.compile(r"[A-Za-z$€£¥₹¢°Ωμµ]+\.?|\^?\{?-?\d+\}?|[/*·]|\S")


@dataclass(frozen=True, slots=True)
class Unit:
    powers: tuple[tuple[str, int], ...]
    """(base unit or noun, exponent), sorted; empty for words that say nothing, such as "units"."""
    size: Fraction
    """How many base units one is."""
    nouns: frozenset[str]
    """The counted things among them, which have no size."""
    multipliers: frozenset[str] = frozenset()
    """Words that make another number of it: pairs, halves, factorial."""


def known_unit(word: str) -> bool:
    return _lookup(word) is not None or word in _COMPOUND or word.casefold() in _MODIFIERS


def _lookup(word: str) -> tuple[Fraction, str] | None:
    word = word.rstrip(".")
    if word in _KNOWN:
        return _KNOWN[word]
    # Short symbols keep their case (m is not M); words and their plurals do not.
    lower = word.casefold()
    if len(word) > 2:
        for spelling in (lower, lower.removesuffix("s"), lower.removesuffix("es")):
            if spelling in _KNOWN:
                return _KNOWN[spelling]
    elif len(word) == 2 and lower in _KNOWN and word.isalpha() and word != "Pa":
        return _KNOWN[lower]
    if lower == "centuries":
        return _KNOWN["century"]
    return None


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` names, or None when it is not a unit but a statement."""
    if _TIMES_WHAT.search(text):
        return None
    powers: dict[str, int] = {}
    size = Fraction(1)
    nouns: set[str] = set()
    sign, modifier, last, last_word = 1, 1, "", ""
    for piece in _WORD.findall(
        _SPACES.sub(" ", text).replace("\\", " ").replace("~", " ").replace("{", "").replace("}", "")
    ):
        word = piece.rstrip(".")
        lower = word.casefold()
        if lower in ("/", "per"):
            sign = -1
        elif lower in ("*", "·", "^", "-", "(", ")"):
            continue
        elif (exponent := _exponent(word)) is not None or lower in _AFTERS:
            if not last:
                return None
            exponent = exponent if exponent is not None else _AFTERS[lower]
            factor = exponent - 1 if powers[last] > 0 else -(exponent - 1)
            known = _lookup(last_word)
            if known is not None:
                size *= known[0] ** factor
            powers[last] += factor
        elif lower in _MODIFIERS:
            modifier = _MODIFIERS[lower]
        elif lower in _NOT_THINGS or not word.replace("'", "").isalpha() and word not in "$€£¥₹¢°Ωμµ":
            return None
        elif lower in _SAYS_NOTHING:
            modifier = 1
        else:
            for name, power in _COMPOUND.get(lower, {word: modifier}).items():
                known = _lookup(name)
                last, last_word = (known[1] if known else _noun(name)), name
                if known:
                    size *= known[0] ** (power * sign)
                else:
                    nouns.add(last)
                powers[last] = powers.get(last, 0) + power * sign
            modifier = 1
    if len(nouns) > 4:
        return None
    multipliers = _multipliers(text)
    kept = tuple(sorted((name, power) for name, power in powers.items() if power))
    return Unit(kept, size, frozenset(nouns), multipliers)


def _multipliers(text: str) -> frozenset[str]:
    words = re.findall(r"[a-z]+(?:-fold)?", text.casefold())
    if not _ORDERED.isdisjoint(words):
        # 12 ordered pairs are counted one by one.
        words = [word for word in words if word not in _COUNTED_PAIRS]
    found = {
        word
        for word, following in zip_longest(words, words[1:], fillvalue="")
        if (word in _MULTIPLIERS and not (word in _ADJECTIVES and _is_thing(following)))
        or _FOLD.fullmatch(word)
    }
    if words and (words[-1] in _NUMBERS or words[-1] in ("square", "cubic")):
        # 5 point five, 5 six, 5 square: no thing follows.
        found.add(words[-1])
    return frozenset(found)


def _is_thing(word: str) -> bool:
    return bool(word) and word not in _SAYS_NOTHING and word not in _NUMBERS and word not in _MULTIPLIERS


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
    if not _same_multipliers(gold, response):
        return None
    if gold is None or response is None or not gold.powers or not response.powers:
        return Fraction(1)
    if _is_generic(gold) is not _is_generic(response):
        return Fraction(1)
    if gold.powers == response.powers:
        return response.size / gold.size
    if gold.nouns <= response.nouns or response.nouns <= gold.nouns:
        # "5 apples" and "5 red apples", "12 inches" and "12 inches of snow"; but what has a size must agree.
        strip = [
            tuple(item for item in unit.powers if item[0] not in unit.nouns) for unit in (gold, response)
        ]
        counted = gold.nouns and response.nouns
        same = strip[0] == strip[1] and bool(counted or (strip[0] and _says_of_what(gold, response)))
        return response.size / gold.size if same else None
    return None


def _same_multipliers(gold: Unit | None, response: Unit | None) -> bool:
    wanted = gold.multipliers if gold else frozenset()
    given = response.multipliers if response else frozenset()
    return wanted == given or (response is None and wanted <= _COLLECTIVES)


def _says_of_what(*units: Unit) -> bool:
    """Whether the nouns only name what the units measure: inches of snow, but not litres per person."""
    return all(power > 0 for unit in units for name, power in unit.powers if name in unit.nouns)


def _is_generic(unit: Unit) -> bool:
    """Whether it only says "units", which agree with every real unit; square units are not units."""
    return all(name == "unit" for name, _ in unit.powers)
