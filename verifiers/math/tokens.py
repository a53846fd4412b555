r"""From the text of an answer to tokens. Owns LaTeX's spelling: spacing, styles, Unicode, digit groups; and
the spellings of published golds that are no usual LaTeX: y^{\prime}, -1./3, np.arcsin(10/13), negative 5.

One pass, linear in the text. Knows no grammar: `\left(` and `(` come out the same, `\mathbf{x}` is x."""

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from verifiers.box_context import end_of_group
from verifiers.math.words import OPERATORS

MAX_TOKENS = 1500


class Unreadable(ValueError):
    """The text is not mathematics that we read; the message says where it stopped making sense."""


class Token(NamedTuple):
    kind: str
    """number, symbol, word, command, operator, text or end."""
    value: str
    spaced: bool = False
    """White space stands before it."""
    grouped: bool = False
    """A number written with digit groups, 1,234."""


_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₒₓₙₖₘ", "0123456789+-=()aeoxnkm", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_VULGAR_FRACTION = re.compile("[¼-¾⅐-⅞]")

_CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "×": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/", "√": r"\sqrt ",
    "∛": r"\sqrt[3] ",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∖": r"\setminus ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "′": "'", "″": "''", "’": "'",
    "‘": "'",
    "…": r"\ldots ", "⋯": r"\ldots ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "∧": r"\land ", "∨": r"\lor ", "→": r"\to ", "∠": r"\angle ",
    "△": r"\triangle ", "∣": "|", "∶": ":", "\u00a0": " ", "\u2009": r"\,", "\u202f": r"\,", "\u2007": r"\,",
    "\u200b": "", "\u200c": "", "\u200d": "", "\u2060": "", "\ufeff": "", "\u2061": "", "\u2062": "",
    "ı": "i",
    "∫": r"\int ", "∑": r"\sum ", "∏": r"\prod ",
    "％": "%", "€": r"\text{euro}", "£": r"\text{gbp}", "¥": r"\text{yen}", "₹": r"\text{rupee}",
    "¢": r"\text{cents}",
}  # fmt: skip
_TRANSLATION = str.maketrans(_CHARACTERS)
_GREEK = {
    chr(code): unicodedata.name(chr(code)).rpartition(" ")[2].lower().replace("lamda", "lambda")
    for code in [*range(0x3B1, 0x3CA), *range(0x391, 0x3AA)]
    if unicodedata.name(chr(code), "")
}


def plain_characters(text: str) -> str:
    """The text with Unicode mathematics spelled in ASCII LaTeX and control characters gone."""
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda run: _script("^", _SUPERSCRIPTS, run.group()), text)
        text = _SUBSCRIPT_RUN.sub(lambda run: _script("_", _SUBSCRIPTS, run.group()), text)
        text = _VULGAR_FRACTION.sub(_vulgar_fraction, text)
        text = text.translate(_TRANSLATION)
        # Compatibility forms (full-width digits, italic letters) only now: before, ² would have become 2.
        text = unicodedata.normalize("NFKC", text).translate(_TRANSLATION)
    if not text.isprintable():
        text = "".join(
            " " if character in "\n\t\r\f\v" else character
            for character in text
            if character in "\n\t\r\f\v" or unicodedata.category(character)[0] != "C"
        )
    return text


def _script(mark: str, table: dict[str, str], run: str) -> str:
    return mark + "{" + "".join(table[character] for character in run) + "}"


def _vulgar_fraction(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"


# Between groups of three digits: a space of TeX, or a comma that TeX is told not to follow by one, {,} and
# ,\!. A bare comma with a space after it, of whatever width, separates two items.
_THIN = r"(?:\\[,!;:\ ]|\\(?:neg)?(?:thin|med|thick)space(?![A-Za-z])|\{\\[,!;:]\})"
_BRACED_COMMA = rf"(?:{_THIN}\s?){{0,3}}(?:\\(?:text|mathord|mathpunct))?\{{,\}}\s?(?:{_THIN}\s?){{0,3}}"
_NARROWED_COMMA = r"(?:\\!\s?){0,2},(?:\s?\\!\s?){0,2}"
_SEPARATOR = rf"(?:{_BRACED_COMMA}|{_NARROWED_COMMA}|(?:{_THIN}\s?){{1,3}}|[\ ~'])"
_PLAIN_COMMA = re.compile(r"(?<![{!]),(?!\s?\\!)")
_LEXER = re.compile(
    r"""
    (?P<row>\\\\(?:\s*\[[^\]\n]{0,20}\])?)
  | (?P<space>[\s~]+|\\[,;:!>\ ]|\\(?:enspace|(?:neg)?(?:thin|med|thick)space)(?![A-Za-z]))
  | (?P<grouped>(?<!\d,)[1-9]\d{0,2}(?:"""
    + _SEPARATOR
    + r"""\d{3})+
      (?![\d/]|\s*\d|,\d)(?:\.\d+)?)
  | (?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,6}(?![A-Za-z\d.]))?)
  | (?P<drop>\\(?:textcolor|colorbox)\s*\{[^{}]{0,40}\}
      |\\(?:left|right|[bB]igg?[lrm]?|middle)(?![A-Za-z])(?:\s*\.)?
      |\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|boldmath|noindent|nonumber|mathstrut
          |strut|protect|relax|checkmark|large|Large|LARGE|small|normalsize|tiny|huge|Huge|therefore|because|centering|hfill|newline)(?![A-Za-z])
      |\\(?:hspace|vspace|color|label|tag|phantom|hphantom|vphantom|mspace|kern|hskip)\*?\s*\{[^{}]{0,40}\}
      |\\[()\[\]]|(?<!\\)\$)
  |
  (?P<bold>\\(?:mathbf|boldsymbol|bm|pmb)\s*(?:\{\s*[A-Za-z]\s*\}|(?<=[a-z])\s[A-Za-z](?![A-Za-z])))
  | (?P<style>\\(?:mathbf|mathit|boldsymbol|bm|pmb|mathcal|mathsf|mathtt|mathnormal|mathfrak|ensuremath
      |underline|boldmath)(?![A-Za-z]))
  | (?P<atom>\\math(?:ord|bin|rel|op|open|close|punct|inner)(?![A-Za-z]))
  | (?P<text>\\(?:text(?:rm|bf|it|sf|tt|normal|up|sc)?|mathrm|mbox|hbox|operatorname\*?|rm)\s*\{)
  | (?P<command>\\[A-Za-z]+|\\.)
  | (?P<word>[A-Za-z]+)
  | (?P<operator>\*\*|:=|<=|>=|!=|==|<>|\.\.\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DOUBLED_COMMAND = re.compile(r"\\\\(?=[A-Za-z])")
_DEPTHS = {"(": 1, "[": 1, r"\{": 1, r"\langle": 1, ")": -1, "]": -1, r"\}": -1, r"\rangle": -1}
_BRACKETS = _DEPTHS.keys() | {r"\lbrace", r"\rbrace"}
# What a wrapper such as \mathord only spaces differently.
_WRAPPED_SIGN = re.compile(r"\s*\{\s*(\\[A-Za-z]+|\\[{}]|[<>!=]?=|[^\w\s{}\\])\s*\}")
_SIGNS_IN_ATOMS = OPERATORS | _BRACKETS | {",", ";", "|", "!"}
_UNIT_VECTOR = re.compile(
    r"(?:\\(?:mathbf|boldsymbol|bm|pmb))?\s*(?:\{\s*(?:\\[ij]math|[ijk])\s*\}|\s[ijk]\b|\\[ij]math)"
    r"|\s*\{\s*\\(?:mathbf|boldsymbol|bm|pmb)\s*\{\s*(?:\\[ij]math|[ijk])\s*\}\s*\}"
)
_STYLES_OF_VECTORS = frozenset(r"\hat \vec \widehat \overrightarrow \mathbf \boldsymbol \bm \pmb".split())
VECTOR = "vector "
"""Begins the name of a letter that is marked as a vector."""


def tokenize(text: str) -> list[Token]:
    """Tokens of `text` (already through `plain_characters`), without an end mark.

    A bare 1,234 is one number, and never also a list; inside brackets a comma always separates."""
    if r"\\" in text and r"\begin" not in text:
        text = _DOUBLED_COMMAND.sub(r"\\", text)
    tokens: list[Token] = []
    at, depth, spaced = 0, 0, False
    while at < len(text):
        match = _LEXER.match(text, at)
        assert match is not None  # the last alternative takes any character
        kind, value, at = match.lastgroup, match.group(), match.end()
        if len(tokens) > MAX_TOKENS:
            raise Unreadable(f"more than {MAX_TOKENS} symbols")
        if kind == "space":
            spaced = True
            continue
        if kind == "drop":
            continue
        if value in _STYLES_OF_VECTORS or kind == "bold":
            end, letter = _unit_vector(text, match)
            if letter:
                tokens.append(Token("symbol", f"vector {letter}", spaced))
                at, spaced = end, False
                continue
            value = value.strip(" {}")[-1] if kind == "bold" else value
        if kind == "atom" and (sign := _WRAPPED_SIGN.match(text, at)) and sign.group(1) in _SIGNS_IN_ATOMS:
            value, at = sign.group(1), sign.end()
            kind = "command" if value[0] == "\\" else "operator"
        if kind == "style" or kind == "atom":
            spaced = False
            continue
        if kind == "grouped":
            at, number = _grouped_number(match, depth, spaced)
            tokens.append(number)
        elif kind == "text":
            at, content = _braced(text, at)
            if not content.strip(" ~") and not value.startswith(r"\operatorname"):
                spaced = spaced or bool(content)
                continue
            if (scale := _SCALE_IN_TEXT.fullmatch(content)) is not None:
                # \text{ million dollars}: the number, then its unit.
                tokens += [_token("text", part, True) for part in scale.groups()]
                continue
            counted = _COUNTED_IN_TEXT.fullmatch(content)
            if counted is not None and not value.startswith(r"\operatorname"):
                text, at = f"{counted.group(1)}\\text{{{counted.group(2)}}}{text[at:]}", 0
                continue
            if _is_mathematics(value, content):
                text, at = "{" + content + "}" + text[at:], 0
                continue
            operator = value.startswith(r"\operatorname")
            tokens.append(_token("function" if operator else "text", content, spaced))
        else:
            token = _token(str(kind), value, spaced)
            depth += _DEPTHS.get(token.value, 0)
            tokens.append(token)
        spaced = False
    return _without_idle_quads(_with_vectors(tokens))


def _unit_vector(text: str, mark: re.Match[str]) -> tuple[int, str]:
    """The end and the letter of the unit vector that is marked here; (0, "") when it is none."""
    vector = _UNIT_VECTOR.match(text, mark.start() if mark.lastgroup == "bold" else mark.end())
    if vector is None:
        return 0, ""
    return vector.end(), next(character for character in vector.group()[::-1] if character in "ijk")


def _with_vectors(tokens: list[Token]) -> list[Token]:
    r"""Bold letters as vectors where two of them stand around a \times, else as letters."""
    if not any([token.kind == "bold" for token in tokens]):
        return tokens
    crossed = any(
        sign.value == r"\times" and left.kind == right.kind == "bold"
        for left, sign, right in zip(tokens, tokens[1:], tokens[2:], strict=False)
    )
    mark = VECTOR if crossed else ""
    return [
        Token("symbol", mark + token.value, token.spaced) if token.kind == "bold" else token
        for token in tokens
    ]


def _grouped_number(match: re.Match[str], depth: int, spaced: bool) -> tuple[int, Token]:
    """The end and the token of digits in groups; inside brackets, of those before the first plain comma."""
    value = match.group()
    comma = _PLAIN_COMMA.search(value) if depth > 0 else None
    if comma is not None:
        value = value[: comma.start()]
        return match.start() + len(value), Token("number", value, spaced)
    return match.end(), Token("number", re.sub(r"[^\d.]", "", value), spaced, grouped=True)


def _without_idle_quads(tokens: list[Token]) -> list[Token]:
    r"""Wide spaces kept only where they separate two formulas like a comma: x = 5 \quad y = 3."""
    if not any([token.value in _QUADS for token in tokens]):
        return tokens
    kept: list[Token] = []
    for position, token in enumerate(tokens):
        if token.value in _QUADS:
            following = next((other for other in tokens[position + 1 :] if other.value not in _QUADS), None)
            if not kept or following is None or _is_loose(kept[-1]) or _is_loose(following):
                continue
            kept.append(Token("operator", ",", token.spaced))
        else:
            kept.append(token)
    return kept


_QUADS = (r"\quad", r"\qquad")
_ENDS_OF_FORMULAS = frozenset(")]}([|!%")


def _is_loose(token: Token) -> bool:
    """Whether a wide space next to this token is only space."""
    return token.kind in ("text", "word", "operator") and token.value not in _ENDS_OF_FORMULAS


_NUMBER_IN_TEXT = re.compile(r"\s*(?:\\?\$)?\s*[-+]?[\d][\d.,/:]*\s*%?\s*")


_HAS_FORMULA = re.compile(r"=|\d.*(?:\band\b|\bor\b)|(?:\band\b|\bor\b).*\d", re.DOTALL)
_ORDINARY_WORD = re.compile(r"\b(?!(?:and|or)\b)[A-Za-z]{2,}")


_SCALE_IN_TEXT = re.compile(r"\s*(hundred|thousand|million|billion|trillion)\s+([A-Za-z][A-Za-z ]*)")
_COUNTED_IN_TEXT = re.compile(r"\s*([-+]?\d[\d.,]*)(\s+[A-Za-z][A-Za-z ]*)")


def _is_mathematics(command: str, content: str) -> bool:
    r"""Whether a text command only styles mathematics: \text{42}, \mathrm{\frac{\pi}{2}}, \mathrm{i}."""
    if command.startswith(r"\operatorname"):
        return False
    return (
        content.strip() in ("i", "e")
        or _NUMBER_IN_TEXT.fullmatch(content) is not None
        or (_HAS_FORMULA.search(content) is not None and not _ORDINARY_WORD.search(content))
        or (r"\frac" in content or r"\sqrt" in content or r"\pi" in content)
    )


_OTHER_SPELLINGS = {
    r"\lbrace": ("command", r"\{"),
    r"\rbrace": ("command", r"\}"),
    r"\colon": ("operator", ":"),
}


@lru_cache(maxsize=1024)
def _token(kind: str, value: str, spaced: bool) -> Token:
    match kind:
        case "word" | "text":
            if kind == "word" and len(value) == 1:
                return Token("symbol", value, spaced)
            if value.strip(" ~").casefold() in ("percent", "percentage", "pct"):
                return Token("operator", "%", spaced)
        case "command" if value in _OTHER_SPELLINGS:
            kind, value = _OTHER_SPELLINGS[value]
        case "operator" if value == ":=":
            value = "="
        case "operator" if value in _GREEK:
            return Token("symbol", _GREEK[value], spaced)
        case "row":
            return Token("operator", r"\\", spaced)
    return Token(kind, value, spaced)


def _braced(text: str, at: int) -> tuple[int, str]:
    """(end, content) of the group whose opening brace stands just before `at`."""
    end = end_of_group(text, at, len(text))
    if end is None:
        raise Unreadable("a brace is never closed")
    return end, text[at : end - 1]


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
    """The text with such spellings replaced; most texts come back as they are."""
    text = _MODULUS.sub(r"\1 \\pmod{\2}", _COUNTED.sub(_chosen, text))
    text = _FACTORIAL_IS.sub(r"\1! =", text)
    text = _PRIMES.sub(lambda match: "'" * max(1, (match.group(1) or "").count("prime")), text)
    text = _SPOKEN_SIGN.sub(_sign_for_word, _FLOAT_OVER.sub(r"\1", text))
    return _MODULE.sub(_without_module, text)


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
