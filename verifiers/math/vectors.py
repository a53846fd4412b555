"""Vectors in their three spellings: a column or row, components in brackets, i, j, k with coefficients; and
matrices as lists of rows."""

from fractions import Fraction

from verifiers.math.nodes import Bracket, Matrix, Node, Number, Product, Sum, Symbol

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
            rows = tuple(item.items for item in items if isinstance(item, Bracket) and _is_row(item))
            same_length = len({len(row) for row in rows}) == 1
            return Matrix(rows) if len(rows) == len(items) and same_length else None
    return None


def _is_row(node: Bracket) -> bool:
    return (node.opening, node.closing) == ("[", "]")


def _from_unit_vectors(node: Node) -> tuple[Node, ...] | None:
    terms = node.terms if isinstance(node, Sum) else (node,)
    components: dict[int, Node] = {}
    for term in terms:
        factors = _flat_factors(term)
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


def _flat_factors(node: Node) -> tuple[Node, ...]:
    if not isinstance(node, Product):
        return (node,)
    return tuple(factor for part in node.factors for factor in _flat_factors(part))
