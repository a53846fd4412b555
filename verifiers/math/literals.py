"""Numbers as they are written: digit by digit exact, repeating decimals, bases, degrees with minutes, the
parts of a mixed number. Tokens only; the grammar is the parser's."""

from fractions import Fraction
from functools import lru_cache

from verifiers.math.cursor import Cursor
from verifiers.math.nodes import Based, Degrees, Node, Number, Product, Quotient, Sum
from verifiers.math.tokens import Token, Unreadable
from verifiers.math.words import SIGNS

_DOTS = (r"\ldots", r"\dots", "...", r"\cdots")
_OVERLINES = (r"\overline", r"\bar", r"\dot")
_ITEM_STARTS = ("", ",", ";", "(", "[", r"\{", "=", "and", "or")
_ITEM_ENDS = (",", ";", ")", "]", r"\}", "%", r"\%", "and", "or")
_PAIRS = (("(", ")"), ("[", "]"))
_BASE_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip


@lru_cache(maxsize=1024)
def read_number(token: Token) -> Number:
    """The exact value of a literal, with the digits it was written with."""
    text = token.value
    if len(text) < 4500 and text.isdecimal():
        return Number(Fraction(int(text)))
    mantissa, letter, exponent = text.lower().partition("e")
    if letter and abs(int(exponent)) > 5000:
        raise Unreadable(f"the exponent {exponent}")
    if len(mantissa) >= 4500:
        raise Unreadable(f"a number of {len(mantissa)} digits")
    value = Fraction(mantissa)
    if letter:
        value *= Fraction(10) ** int(exponent)
    whole, point, decimals = mantissa.partition(".")
    if not point:
        return Number(value)
    significant = len((whole + decimals).lstrip("0")) or 1
    places = len(decimals) - (int(exponent) if letter else 0)
    return Number(value, max(places, 0), significant)


def take_decimal_end(cursor: Cursor, number: Number) -> Number | None:
    r"""The number with what repeats or dots after it, 0.1\overline{6} and 0.1(6) (exact) or 0.123\ldots; None
    without."""
    if number.places is None and cursor.here.value != ".":
        return None
    if (digits := _take_bracketed_digits(cursor, number)) is not None:
        return _repeating(number, number.places or 0, digits, is_dotted=False)
    if cursor.sees(".") and cursor.peek().value in _OVERLINES:
        cursor.advance()
        number = Number(number.value, 0)
    if number.places is None:
        return None
    if cursor.here.value in _OVERLINES:
        cursor.advance()
        return _repeating(number, number.places, cursor.raw_argument(), is_dotted=cursor.sees(r"\dot"))
    if cursor.here.value in _DOTS:
        cursor.advance()
        return Number(number.value, number.places, number.significant, open_ended=True)
    return None


def _take_bracketed_digits(cursor: Cursor, number: Number) -> str | None:
    """The 3 of 0.(3) and the 6 of 0.1(6), taken. The second may be a product, and is one unless it stands
    alone, as a whole answer or item."""
    point = number.places is None and cursor.sees(".") and not cursor.here.spaced
    opening, digits, closing = (cursor.peek(int(point) + ahead) for ahead in range(3))
    if not point and number.places is None:
        return None
    if (
        opening.value != "("
        or not digits.value.isdecimal()
        or not digits.value.isascii()
        or closing.value != ")"
    ):
        return None
    if opening.spaced or digits.kind != "number" or not (point or _stands_alone(cursor)):
        return None
    cursor.go_to(cursor.at + 3 + point)
    return digits.value


def _stands_alone(cursor: Cursor) -> bool:
    """Whether 0.1(6), of which the cursor has taken the 0.1, is a whole answer or item."""
    start = cursor.at - 1
    if start > 0 and cursor.tokens[start - 1].value in SIGNS:
        start -= 1
    before = cursor.tokens[start - 1].value if start > 0 else ""
    after = cursor.peek(3)
    if before not in _ITEM_STARTS or not (after.kind == "end" or after.value in _ITEM_ENDS):
        return False
    # (0.5(4)) is a factor in brackets, (0.5(4), 1) has items.
    return (before, after.value) not in _PAIRS


def _repeating(number: Number, places: int, digits: str, *, is_dotted: bool) -> Number:
    if is_dotted:
        raise Unreadable("dots over two digits")
    if not digits.isdecimal() or not digits.isascii():
        raise Unreadable(f"a repeating part {digits!r}")
    return Number(number.value + Fraction(int(digits), 10**places * (10 ** len(digits) - 1)))


def take_plain_fraction(cursor: Cursor) -> Quotient | None:
    """The 1/2 of 2 1/2, taken; None when no proper fraction of two integers stands here."""
    top, slash, bottom = cursor.here, cursor.peek(), cursor.peek(2)
    if not (top.spaced and top.value.isdecimal() and slash.value == "/" and bottom.value.isdecimal()):
        return None
    fraction = Quotient(Number(Fraction(int(top.value))), Number(Fraction(int(bottom.value))))
    if not is_proper_fraction(fraction) or cursor.peek(3).value in ("^", "!", "/"):
        return None
    cursor.go_to(cursor.at + 3)
    return fraction


def is_proper_fraction(node: Node) -> bool:
    """Whether a fraction of literal integers lies between 0 and 1, as the one of a mixed number must."""
    match node:
        case Quotient(Number(top, None), Number(bottom, None)):
            return 0 < top < bottom
    return False


def based(number: Number, subscript: str) -> Based:
    base = subscript.strip("()")
    value = int(base) if base.isdecimal() and len(base) < 3 else _BASE_WORDS.get(base)
    if value is None or number.places is not None or not 2 <= value <= 36:
        raise Unreadable(f"a number with the subscript {base!r}")
    return Based(str(number.value), value)


def scaled(node: Node, factor: int) -> Node:
    """5 million is one number, not a product that is left to be computed."""
    if isinstance(node, Number) and (node.value * factor).denominator == 1:
        return Number(node.value * factor)
    return Product((node, Number(Fraction(factor))))


def take_minutes(cursor: Cursor, degrees: Node) -> Degrees:
    """30 degrees with what may follow: the 15' 20'' of 30° 15' 20''."""
    value = degrees
    for mark, part in (("'", 60), ("''", 3600)):
        token = cursor.here
        if token.kind != "number" or cursor.peek().value != "'":
            break
        seconds = cursor.peek(2).value == "'"
        if seconds != (mark == "''"):
            continue
        cursor.go_to(cursor.at + 1 + len(mark))
        minutes = Fraction(token.value) / part
        if isinstance(value, Number):
            value = Number(value.value + minutes)
        else:
            value = Sum((value, Number(minutes)))
    return Degrees(value)
