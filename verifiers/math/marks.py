"""Numbers that wear a sign: percent, degrees, a base, the colon of a ratio, and when it may be left out."""

from fractions import Fraction

from verifiers.math.nodes import Based, Degrees, Node, Number, Percent, Product, Quotient, Ratio
from verifiers.math.scalars import exact_or_none, same_scalar


def same_based(gold: Node, response: Node) -> bool:
    """A gold with a base asks for that base; without one, the value counts."""
    match gold, response:
        case Based(wanted, base), Based(given, other):
            return base == other and wanted.lstrip("0") == given.lstrip("0")
        case Based(), _:
            return False
    return same_scalar(gold, response)


def same_with_marks(gold: Node, response: Node) -> bool:
    """Percent and degree signs: equal as numbers, or the same number with the sign on one side only."""
    match gold, response:
        case (Percent(), _) | (_, Percent()):
            return _same_percent(gold, response)
        case (Degrees(wanted), Degrees(given)):
            return same_scalar(wanted, given)
        # 30 for 30°; but what is written with pi is in radians.
        case (Degrees(wanted), _):
            return same_scalar(wanted, response) if _is_rational(response) else same_scalar(gold, response)
        case (_, Degrees(given)):
            return same_scalar(gold, given if _is_rational(gold) else response)
    return same_scalar(gold, response)


def _is_rational(node: Node) -> bool:
    return exact_or_none(node) is not None


def _same_percent(gold: Node, response: Node) -> bool:
    match gold, response:
        case Percent(wanted), Percent(given):
            return same_scalar(wanted, given)
        case Percent(wanted), _:
            # "50%" asked for a percentage: 50 is one.
            return same_scalar(gold, response) or same_scalar(wanted, response)
        case _, Percent(given):
            # A gold of 50 may be a percentage. At most 1 it is more likely a fraction: 0.5 is not 0.5%.
            value = exact_or_none(gold)
            is_percentage = value is not None and abs(value) > 1
            return same_scalar(gold, response) or (is_percentage and same_scalar(gold, given))
    return False


def same_ratio(gold: Ratio, response: Node, *, has_names: bool = False) -> bool:
    """`has_names`: the gold says what it is a ratio of, so that it is no time of day."""
    match response:
        case Ratio(items) if len(items) == len(gold.items):
            if _may_be_time(gold) and not has_names:
                # 10:30 is not 1:3.
                return all(map(same_scalar, gold.items, items))
            return _same_ratios(gold, response)
        case _ if is_full_hour(gold) and not has_names:
            # 7 for 7:00; a ratio never ends in 0.
            return same_scalar(gold.items[0], response)
        case Quotient() | Number() if len(gold.items) == 2 and not _is_zero(gold.items[1]):
            return same_scalar(Quotient(*gold.items), response)
    return False


def _same_ratios(gold: Ratio, response: Ratio) -> bool:
    first, other = gold.items[0], response.items[0]
    return (
        all(
            same_scalar(Product((first, right)), Product((left, other)))
            for left, right in zip(gold.items[1:], response.items[1:], strict=True)
        )
        and not _is_zero(other)
        and not _is_zero(first)
    )


def is_full_hour(ratio: Ratio) -> bool:
    return _may_be_time(ratio) and ratio.items[1] == Number(Fraction(0))


def _may_be_time(ratio: Ratio) -> bool:
    """h:mm, whose second number is written with two digits."""
    match ratio.items:
        case (Number(hour), Number(minute)):
            return 1 <= hour <= 24 and (minute == 0 or 10 <= minute < 60)
    return False


def _is_zero(node: Node) -> bool:
    return same_scalar(node, Number(Fraction(0)))
