"""The words of mathematics: which names are functions, letters, signs, relations. Tables, one clean-up,
and the grammar of numbers in words."""

import re
from collections.abc import Sequence

GREEK = {
    name: name.removeprefix("var")
    for name in (
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau "
        "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega varepsilon "
        "vartheta varphi varrho Pr varsigma varkappa ell hbar partial"
    ).split()
} | {"top": "T"}

CONSTANTS = {"pi": "pi", "imath": "i", **dict.fromkeys(("infty", "infinity", "oo", "inf"), "infinity")}

# The value is the name that the evaluation knows.
FUNCTIONS = {
    name: name
    for name in (
        "sin cos tan cot sec csc asin acos atan sinh cosh tanh coth sech csch ln log exp sqrt cbrt abs floor "
        "ceiling gcd lcm max min det sign factorial cis"
    ).split()
} | {
    "tg": "tan", "ctg": "cot", "cosec": "csc", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arctg": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh",
    "lg": "log", "ceil": "ceiling", "Re": "real", "Im": "imaginary", "arg": "argument", "sgn": "sign",
    "binom": "binomial", "tr": "trace", "Tr": "trace",
}  # fmt: skip

RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", "<>": "!=",
    r"\lt": "<", r"\gt": ">", r"\le": "<=", r"\leq": "<=", r"\leqslant": "<=", r"\leqq": "<=", r"\ge": ">=",
    r"\geq": ">=", r"\geqslant": ">=", r"\geqq": ">=", r"\ne": "!=", r"\neq": "!=", r"\approx": "~",
    r"\simeq": "~",
    r"\doteq": "~", r"\in": "in", r"\equiv": "=", r"\coloneqq": "=",
}  # fmt: skip

FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac", r"\nicefrac", r"\sfrac")
BINOMIALS = (r"\binom", r"\dbinom", r"\tbinom")

JOINERS = {
    "and": "and", "or": "or", r"\land": "and", r"\lor": "or", r"\wedge": "and", r"\vee": "or", r"\&": "and",
}  # fmt: skip
SIGNS = {"+": "+", "-": "-", r"\pm": r"\pm", r"\mp": r"\mp", "+-": r"\pm"}
TIMES_SIGNS = frozenset(("*", r"\cdot", r"\times", r"\ast", r"\bullet"))
DIVISION_SIGNS = frozenset(("/", r"\div"))
OPERATORS = frozenset((*SIGNS, *TIMES_SIGNS, *DIVISION_SIGNS, *RELATIONS, ":"))
"""Signs between or before two values."""
DEGREE_SIGNS = frozenset((r"\circ", r"\degree", r"\deg"))
MODULO_SIGNS = frozenset(("mod", r"\mod", r"\bmod"))

SET_OPERATIONS = {
    r"\cup": "union", r"\bigcup": "union", r"\cap": "intersection", r"\setminus": "difference",
    r"\backslash": "difference",
}  # fmt: skip
NAMED_SETS = frozenset("RQZNC")

MATRICES = frozenset(
    "pmatrix bmatrix matrix smallmatrix Bmatrix array psmallmatrix bsmallmatrix vmatrix".split()
)
PLAIN_ENVIRONMENTS = frozenset("aligned align equation gathered split align* equation*".split())

# Letters that, before a bracket, are the writer's own functions: f(x) is not f times x.
OWN_FUNCTIONS = frozenset("fghFGHP")
_FUSED = ("arcsin", "arccos", "arctan", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "sqrt")

NO_SOLUTION = {
    "no solution", "no solutions", "no real solution", "no real solutions", "none", "empty set", "dne",
    "the empty set", "no answer exists", "does not exist", "no such number exists",
}  # fmt: skip
# 5 million: the exponent of ten.
TEN_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
ALL_REALS = {
    "all real numbers", "all reals", "all real", "real numbers", "the real numbers", "set of real numbers",
}  # fmt: skip

_TEXT_COMMAND = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|tt|normal|up|sc)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|operatorname\*?|emph|underline|bf|rm|it)(?![A-Za-z])\s*"
    r"|\\(?:text)?color\s*\{[^{}]*\}"
)
_SPACE_COMMAND = re.compile(r"\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])|\\[,;:!> ]|[~\s]+")


_ARTICLE = re.compile(
    r"^(?:an?|the) (?!(?:hundred|thousand|million|billion|trillion|dozen|half|third|quarter)\b)(?=[a-z]{2})"
)


def fused_function(word: str) -> str | None:
    """The function of a run of letters that is a function and its letter, "sinx"; else None."""
    return next((name for name in _FUSED if word.startswith(name) and len(word) == len(name) + 1), None)


def unstyled(text: str) -> str:
    """Words without styles, braces, quotes and end punctuation, with single spaces."""
    text = _TEXT_COMMAND.sub("", text)
    text = _SPACE_COMMAND.sub(" ", text)
    text = text.replace("{", "").replace("}", "").replace("$", "").replace("\\", "")
    text = text.replace("’", "'").replace("`", "").replace('"', "").replace("“", "").replace("”", "")
    return " ".join(text.split()).strip(" .,;:!?'*_")


def clean_words(text: str) -> str:
    """`unstyled`, in lower case, without an article before it."""
    return _ARTICLE.sub("", unstyled(text).casefold(), count=1)


# Numbers in words: twenty-one, one hundred and five, fifteen hundred. A grammar, so that a list of numbers
# ("twenty, one", "one and two") and half a number are none.

_UNITS = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen".split()
    )
}
_TENS = {
    word: 10 * value
    for value, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)
}
_SCALES: dict[str, int] = {word: 10**power for word, power in TEN_POWERS.items() if power > 2}
NUMBER_WORDS = frozenset((*_UNITS, *_TENS))
_WORD = re.compile(r"[a-z]+")
_MAX_SPELLED = 200


def number_in_words(text: str) -> int | None:
    """The whole number that the text spells, in small letters and with single spaces; else None."""
    if len(text) > _MAX_SPELLED or "," in text:
        return None
    words: list[str] = []
    for part in text.split():
        joined = part.split("-")
        if len(joined) > 2 or (len(joined) == 2 and not (joined[0] in _TENS and _digit(joined[1]))):
            return None
        words += joined
    if not words or not all(map(_WORD.fullmatch, words)):
        return None
    if words == ["zero"]:
        return 0
    return _above_thousand(words, bound=10**15)


def _above_thousand(words: Sequence[str], *, bound: int) -> int | None:
    """Groups of three digits, each with a scale smaller than the one before."""
    scale = next((word for word in words if word in _SCALES), None)
    if scale is None:
        return _below_thousand(words)
    at = words.index(scale)
    size = _SCALES[scale]
    group = _below_thousand(words[:at])
    if group is None or group > 999 or size >= bound:
        return None
    rest = words[at + 1 :]
    if not rest:
        return group * size
    # "two thousand and five"; but "two thousand and five hundred" is two numbers.
    has_and = rest[0] == "and"
    value = _above_thousand(rest[1:] if has_and else rest, bound=size)
    if value is None or value >= size or (has_and and value > 99):
        return None
    return group * size + value


def _below_thousand(words: Sequence[str]) -> int | None:
    """Up to 999, and hundreds up to 9,900: fifteen hundred."""
    if "hundred" not in words:
        return _below_hundred(words)
    at = words.index("hundred")
    hundreds = 1 if tuple(words[:at]) == ("a",) else _below_hundred(words[:at])
    if hundreds is None or hundreds % 10 == 0:
        return None
    rest = words[at + 1 :]
    if not rest:
        return 100 * hundreds
    value = _below_hundred(rest[1:] if rest[0] == "and" else rest)
    return None if value is None else 100 * hundreds + value


def _below_hundred(words: Sequence[str]) -> int | None:
    match tuple(words):
        case (word,):
            return _TENS.get(word) or _UNITS.get(word) or None
        case (tens, unit) if tens in _TENS and _digit(unit):
            return _TENS[tens] + _UNITS[unit]
    return None


def _digit(word: str) -> bool:
    return 0 < _UNITS.get(word, 0) < 10
