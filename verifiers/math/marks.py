"""Values in several spellings: numbers with a sign (percent, degrees, a base, the colon of a ratio), and when
it may be left out; vectors as a column or row, in brackets, by i, j, k; matrices as lists of rows."""

from fractions import Fraction

from verifiers.math.arithmetic import exact_or_none
from verifiers.math.nodes import (
    Based,
    Bracket,
    Degrees,
    Matrix,
    Node,
    Number,
    Percent,
    Product,
    Quotient,
    Ratio,
    Sum,
    Symbol,
)
from verifiers.math.scalars import same_scalar
from verifiers.math.trees import flat_factors


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
        case (Percent(wanted), Percent(given)):
            return same_scalar(wanted, given)
        case (Percent(wanted), _):
            # "50%" asked for a percentage: 50 is one.
            return same_scalar(gold, response) or same_scalar(wanted, response)
        case (_, Percent(given)):
            # A gold of 50 may be a percentage. At most 1 it is more likely a fraction: 0.5 is not 0.5%.
            value = exact_or_none(gold)
            is_percentage = value is not None and abs(value) > 1
            return same_scalar(gold, response) or (is_percentage and same_scalar(gold, given))
        case (Degrees(wanted), Degrees(given)):
            return same_scalar(wanted, given)
        # 30 for 30°; but what is written with pi is in radians.
        case (Degrees(wanted), _):
            return same_scalar(gold if exact_or_none(response) is None else wanted, response)
        case (_, Degrees(given)):
            return same_scalar(gold, response if exact_or_none(gold) is None else given)
    return same_scalar(gold, response)


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


_UNIT_VECTORS = {"vector i": 0, "vector j": 1, "vector k": 2}


def as_vector(node: Node) -> tuple[Node, ...] | None:
    """The components, or None when the node is no vector. Round brackets are left to the caller."""
    match node:
        case Matrix(((_,), (_,), *_) as rows):
            return tuple(row[0] for row in rows)
        case Matrix(((_, _, *_) as row,)):
            return row
        case Matrix():
            return None
        case Bracket("<", _, items):
            return items
    return _from_unit_vectors(node)


def as_matrix(node: Node) -> Matrix | None:
    """A matrix, also one that is written [[1, 2], [3, 4]]; None of anything else."""
    match node:
        case Matrix():
            return node
        case Bracket("[", "]", items):
            rows = tuple(
                item.items
                for item in items
                if isinstance(item, Bracket) and item.opening + item.closing == "[]"
            )
            same_length = len({len(row) for row in rows}) == 1
            return Matrix(rows) if len(rows) == len(items) and same_length else None
    return None


def _from_unit_vectors(node: Node) -> tuple[Node, ...] | None:
    terms = node.terms if isinstance(node, Sum) else (node,)
    components: dict[int, Node] = {}
    for term in terms:
        factors = flat_factors(term)
        axes = [factor for factor in factors if isinstance(factor, Symbol) and factor.name in _UNIT_VECTORS]
        if len(axes) != 1:
            return None
        axis = _UNIT_VECTORS[axes[0].name]
        if axis in components:
            return None
        rest = tuple(factor for factor in factors if factor is not axes[0])
        components[axis] = Product(rest) if rest else Number(Fraction(1))
    size = 3 if 2 in components else 2
    return tuple(components.get(axis, Number(Fraction(0))) for axis in range(size))
