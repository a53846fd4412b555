"""Wrong answers made from right ones: what a verifier must refuse. Pure functions on the text of a gold."""

import re
from collections.abc import Iterator

from verifiers.math.answer import plain_number

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PAIR = re.compile(r"\(([^(),\[\]]+),([^(),\[\]]+)\)")


def mutants(gold: str, *, other: str | None = None) -> Iterator[tuple[str, str]]:
    """(kind, text) of wrong answers: a changed digit, the sign, swapped digits or places, another row's gold.

    Kinds that the text does not allow, or that would not change its value, are left out."""
    yield from _changed_digit(gold)
    yield from _changed_sign(gold)
    yield from _swapped(gold)
    if other is not None and _differ(gold, other):
        yield "another row's gold", other


def _differ(one: str, other: str) -> bool:
    first, second = plain_number(one.strip()), plain_number(other.strip())
    if first is not None and second is not None:
        return first != second
    return "".join(one.split()).casefold() != "".join(other.split()).casefold()


def _changed_digit(gold: str) -> Iterator[tuple[str, str]]:
    numbers = list(_NUMBER.finditer(gold))
    if not numbers:
        return
    # The last number that is not an exponent or a subscript: a digit there always changes the value.
    number = next(
        (match for match in reversed(numbers) if gold[: match.start()].rstrip("{")[-1:] not in ("^", "_")),
        None,
    )
    if number is None:
        return
    at = number.end() - 1
    digit = "1" if gold[at] == "9" else str(int(gold[at]) + 1)
    changed = gold[:at] + digit + gold[at + 1 :]
    if "\\overline" not in gold:
        yield "changed digit", changed


def _changed_sign(gold: str) -> Iterator[tuple[str, str]]:
    value = plain_number(gold.strip())
    if value:
        yield "changed sign", gold.strip()[1:] if gold.strip()[0] == "-" else f"-{gold.strip()}"
    elif value is None and re.match(r"\s*\\d?frac\{\d+\}\{\d+\}\s*$", gold):
        yield "changed sign", f"-{gold.strip()}"


def _swapped(gold: str) -> Iterator[tuple[str, str]]:
    pair = _PAIR.search(gold)
    if pair is not None and pair.group(1).strip() != pair.group(2).strip() and pair.group() == gold.strip():
        yield "swapped places", f"({pair.group(2)},{pair.group(1)})"
    number = plain_number(gold.strip())
    digits = gold.strip().lstrip("-")
    if number is not None and digits.isdecimal():
        for at in range(len(digits) - 1):
            if digits[at] != digits[at + 1]:
                swapped = digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :]
                yield "swapped digits", ("-" if number < 0 else "") + swapped
                return
