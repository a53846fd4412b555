"""Numbers that wear a sign: percent, degrees, a base, the colon of a ratio, and when it may be left out."""

from __future__ import annotations

from fractions import Fraction

from verifiers.math.nodes import Based, Degrees, Node, Number, Percent, Product, Quotient, Ratio
from verifiers.math.scalars import exact_or_none, same_scalar

__all__ = ["is_full_hour", "same_based", "same_ratio", "same_with_marks"]


def same_based(gold: Node, response: Node) -> bool:
    """A gold with a base asks for that base; without one, the value counts."""
    if isinstance(gold, Based):
        return (
            isinstance(response, Based)
            and gold.base == response.base
            and (gold.digits.lstrip("0") == response.digits.lstrip("0"))
        )
    return same_scalar(gold, response)


def same_with_marks(gold: Node, response: Node) -> bool:
    """Percent and degree signs: equal as numbers, or the same number with the sign on one side only."""
    if isinstance(gold, Percent) or isinstance(response, Percent):
        return _same_percent(gold, response)
    if isinstance(gold, Degrees) is not isinstance(response, Degrees):
        plain = [node.value if isinstance(node, Degrees) else node for node in (gold, response)]
        has_degrees, bare = (gold, response) if isinstance(gold, Degrees) else (response, gold)
        # 30 for 30°; but what is written with pi is in radians.
        return same_scalar(*plain) if _is_rational(bare) else same_scalar(has_degrees, bare)
    if isinstance(gold, Degrees) and isinstance(response, Degrees):
        return same_scalar(gold.value, response.value)
    return same_scalar(gold, response)


def _is_rational(node: Node) -> bool:
    return exact_or_none(node) is not None


def _same_percent(gold: Node, response: Node) -> bool:
    if isinstance(gold, Percent) and isinstance(response, Percent):
        return same_scalar(gold.value, response.value)
    if same_scalar(gold, response):
        return True
    if isinstance(gold, Percent):
        # "50%" asked for a percentage: 50 is one.
        return same_scalar(gold.value, response)
    assert isinstance(response, Percent)
    # A gold of 50 may have been a percentage. One of at most 1 is more likely a fraction: 0.5 is not 0.5%.
    value = exact_or_none(gold)
    return value is not None and abs(value) > 1 and same_scalar(gold, response.value)


def same_ratio(gold: Ratio, response: Node) -> bool:
    if isinstance(response, Ratio) and len(gold.items) == len(response.items):
        if _may_be_time(gold):
            # 10:30 is not 1:3.
            return all(map(same_scalar, gold.items, response.items))
        first, other = gold.items[0], response.items[0]
        return (
            all(
                same_scalar(Product((first, right)), Product((left, other)))
                for left, right in zip(gold.items[1:], response.items[1:], strict=True)
            )
            and not _is_zero(other)
            and not _is_zero(first)
        )
    if is_full_hour(gold):
        # 7 for 7:00; a ratio never ends in 0.
        return same_scalar(gold.items[0], response)
    if len(gold.items) == 2 and isinstance(response, (Quotient, Number)) and not _is_zero(gold.items[1]):
        return same_scalar(Quotient(*gold.items), response)
    return False


def is_full_hour(ratio: Ratio) -> bool:
    return len(ratio.items) == 2 and ratio.items[1] == Number(Fraction(0)) and _may_be_time(ratio)


def _may_be_time(ratio: Ratio) -> bool:
    """h:mm, whose second number is written with two digits."""
    hour, minute = ratio.items[0], ratio.items[1]
    if len(ratio.items) != 2 or not isinstance(hour, Number) or not isinstance(minute, Number):
        return False
    return 1 <= hour.value <= 24 and (minute.value == 0 or 10 <= minute.value < 60)


def _is_zero(node: Node) -> bool:
    return same_scalar(node, Number(Fraction(0)))
