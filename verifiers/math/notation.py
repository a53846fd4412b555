r"""Spellings of published golds that are no usual LaTeX, put into it: y^{\prime}, -1./3, np.arcsin(10/13),
negative 5; and the label of 12 (inches of snow). Text only."""

import re

_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|\\prime(?![A-Za-z]))")
# 5!=120 between numbers is a factorial and its value; x!=5 is not equal.
_FACTORIAL_IS = re.compile(r"(\d)!=(?=\s*\d)")
_FLOAT_OVER = re.compile(r"(?<![\d.])(\d{1,400})\.(?=\s*/)")
_MODULE = re.compile(r"\b(?:np|numpy|math|sympy)\.([a-z]+\d{0,2})(?![A-Za-z\d._])")
# The logarithm of these libraries is the natural one.
_RENAMED = {"log": "ln", "log10": r"\log_{10}", "log2": r"\log_{2}"}
_OF_MODULES = frozenset(
    "pi e sqrt exp sin cos tan sinh cosh tanh arcsin arccos arctan asin acos atan floor ceil abs gcd lcm "
    "log log10 log2 factorial".split()
)
# Where a value begins, "minus" and "negative" are its sign; in "5 minus 3" and "non-negative 5" they are not.
_SPOKEN_SIGN = re.compile(
    r"((?:^|[=<>:;,(\[{$]|\\\(|\b(?:and|or|is)\b)[\s~]*(?:\\text(?:rm)?\s*\{\s*)?)(?:negative|minus)"
    r"((?:[\s~]|\\ )*\}?(?:[\s~$]|\\[ ,;:(])*)(?=\.?\d|\\d?frac|\\tfrac|\\sqrt|\\pi)",
    re.IGNORECASE,
)
_LABELLED = re.compile(
    r"((?:\\?\$\s*)?[-+]?[\d,]{1,40}(?:\.\d{1,40})?(?:\s*/\s*\d{1,40})?\s*%?)\s*"
    r"\(([A-Za-z][A-Za-z '\-/.]{0,60})\)"
)


# _nC_k, {}^nC_k, _{10}P_{3}, with \mathrm or without.
_COUNTED = re.compile(
    r"(?<![\w)\]}])(?:\{\s*\})?[_^](?:\{([\w+ -]+)\}|(\w))\s*\{?(?:\\(?:mathrm|text|rm)\s*)?"
    r"\{?([CP])\}{0,2}_(?:\{([\w+ -]+)\}|(\w))"
)
_MODULUS = re.compile(r"(\\equiv\s*-?\w+)\s*\((\d+)\)$")


def usual_notation(text: str) -> str:
    """The text with such spellings replaced; most texts come back as they are, at the cost of a few looks."""
    if "C" in text or "P" in text:
        text = _COUNTED.sub(_chosen, text)
    if r"\equiv" in text:
        text = _MODULUS.sub(r"\1 \\pmod{\2}", text)
    if "!=" in text:
        text = _FACTORIAL_IS.sub(r"\1! =", text)
    if r"\prime" in text:
        text = _PRIMES.sub(lambda match: "'" * max(1, (match.group(1) or "").count("prime")), text)
    if "./" in text or ". /" in text:
        text = _FLOAT_OVER.sub(r"\1", text)
    if "inus" in text or "egative" in text:
        text = _SPOKEN_SIGN.sub(_sign_for_word, text)
    if "np." in text or "math." in text or "numpy." in text or "sympy." in text:
        text = _MODULE.sub(_without_module, text)
    return text


def _sign_for_word(match: re.Match[str]) -> str:
    before, between = match.groups()
    # \text{negative }5 ends its text before the number, \text{negative 5} after it.
    return (
        before.partition("\\text")[0] + "-" + between.replace("}", "", 1) if "}" in between else before + "-"
    )


def _chosen(match: re.Match[str]) -> str:
    first, other_first, kind, second, other_second = match.groups()
    top, bottom = first or other_first, second or other_second
    return rf"\binom{{{top}}}{{{bottom}}}" if kind == "C" else rf"\frac{{{top}!}}{{({top}-{bottom})!}}"


def _without_module(match: re.Match[str]) -> str:
    name = match.group(1)
    return _RENAMED.get(name, name) if name in _OF_MODULES else match.group()


def split_label(text: str) -> tuple[str, str] | None:
    """(number, words) of a number with its unit in words, 12 (inches of snow); None of any other text."""
    match = _LABELLED.fullmatch(text)
    return (match.group(1), match.group(2)) if match is not None else None
