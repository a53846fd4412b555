r"""Infinite families of solutions: x = \pi/4 + k\pi, k \in \mathbb{Z}, in any letter and from any member."""

from fractions import Fraction

from verifiers.math.arithmetic import NotNumber, real_fraction
from verifiers.math.matching import pair_off
from verifiers.math.nodes import Listing, NamedSet, Node, Relation, Symbol
from verifiers.math.trees import free_symbols

Family = tuple[str | None, tuple[Node, ...], str]
"""(name of the unknown, its expressions, the integer letter)"""


def same_family(gold: Node, response: Node) -> bool:
    one, other = _family(gold), _family(response)
    if one is None or other is None or (one[0] and other[0] and one[0] != other[0]):
        return False
    gold_lines = [_line(node, one[2]) for node in one[1]]
    response_lines = [_line(node, other[2]) for node in other[1]]
    if None in gold_lines or None in response_lines or len(gold_lines) != len(response_lines):
        return False
    return pair_off(gold_lines, response_lines, _same_lattice)


def _family(node: Node) -> Family | None:
    if not isinstance(node, Listing):
        return None
    letters: list[str] = []
    names: set[str | None] = set()
    expressions: list[Node] = []
    for item in node.items:
        match item:
            case Relation(("in",), (Symbol(letter), NamedSet("Z"))):
                letters.append(letter)
            case Relation(("in",)):
                pass
            case Relation(("=",), (Symbol(name), value)):
                names.add(name)
                expressions.append(value)
            case Relation():
                return None
            case _:
                expressions.append(item)
    if len(letters) != 1 or not expressions or len(names) > 1:
        return None
    if any(free_symbols(expression) - {letters[0]} for expression in expressions):
        return None
    return (names.pop() if names else None), tuple(expressions), letters[0]


def _line(node: Node, letter: str) -> tuple[Fraction, Fraction] | None:
    """(start, step) of start + step * letter, to 40 digits; None when it is no such line."""
    try:
        values = [real_fraction(node, {letter: Fraction(x)}, digits=40) for x in (0, 1, 2, 5)]
    except NotNumber:
        return None
    step = values[1] - values[0]
    straight = _near(values[2], values[0] + 2 * step) and _near(values[3], values[0] + 5 * step)
    return (values[0], step) if straight and step else None


def _near(one: Fraction, other: Fraction) -> bool:
    return abs(one - other) <= Fraction(1, 10**25) * max(Fraction(1), abs(one))


def _same_lattice(one: tuple[Fraction, Fraction] | None, other: tuple[Fraction, Fraction] | None) -> bool:
    assert one is not None and other is not None
    if not _near(abs(one[1]), abs(other[1])):
        return False
    shift = (one[0] - other[0]) / one[1]
    return _near(shift, Fraction(round(shift)))
