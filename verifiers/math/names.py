r"""Names of quantities: x, f(x), \angle ABC, a segment AB or \overline{AB}, \text{area}; ratios of them."""

from verifiers.math.nodes import Bracket, FunctionCall, Node, Product, Quotient, Ratio, Symbol, Text
from verifiers.math.trees import free_symbols, replaced

_GRAPH = {Symbol("y"), FunctionCall("f", (Symbol("x"),), known=False)}
"""Two names of one curve: y = 2x + 1 and f(x) = 2x + 1."""


def is_name(node: Node) -> bool:
    """Whether a side only names the thing: x, f(x), \\angle ABC, |AB| is not one (it is a quantity)."""
    match node:
        case Symbol() | Text() | FunctionCall(known=False):
            return True
        case Bracket(_, _, items):
            return all(map(is_name, items))
    return bool(_points(node))


def same_name(one: Node, other: Node) -> bool:
    if one == other or {one, other} == _GRAPH:
        return True
    return bool(_points(one)) and _points(one) == _points(other)


def named_terms(node: Node) -> tuple[Node, ...]:
    r"""The names of a ratio of names, S_1 and S_2 of S_1:S_2 or \frac{S_1}{S_2}; empty for anything else."""
    match node:
        case Quotient(top, bottom):
            items: tuple[Node, ...] = (top, bottom)
        case Ratio(items):
            pass
        case _:
            return ()
    terms = tuple(map(_length, items))
    distinct = len(set(terms)) == len(terms)
    are_quantities = all(is_name(term) and not isinstance(term, Bracket) for term in terms)
    return terms if distinct and are_quantities else ()


def names_ratio(node: Node, value: Node) -> bool:
    """Whether `node` is a ratio of names that `value` tells: no letter of the names is part of the value."""
    return bool(named_terms(node)) and free_symbols(node).isdisjoint(free_symbols(value))


def with_marks_of(gold: Node, response: Node) -> Node:
    r"""The response with the marks of the gold on its letters: \vec a for a, which may be bold, and the other
    way round for one letter."""
    wanted = free_symbols(gold)
    for name in free_symbols(response) - wanted:
        mark, _, letter = name.rpartition(" ")
        if mark in ("vector", "hat") and letter in wanted:
            response = replaced(response, Symbol(name), Symbol(letter))
        elif not mark and f"vector {name}" in wanted:
            response = replaced(response, Symbol(name), Symbol(f"vector {name}"))
    return response


def spelled(name: Node) -> str | None:
    """A text that only this name has, however it is written; None of what is no name of one quantity."""
    match name:
        case FunctionCall(known=False):
            return repr(name)
        case Text(words):
            return f"text {words}"
        case Symbol(letter):
            return _points(name) or letter
    return _points(name) or None


def _length(node: Node) -> Node:
    """The segment of its length |AB|."""
    match node:
        case FunctionCall("abs", (inner,)) if _points(inner):
            return inner
    return node


def _points(node: Node) -> str:
    r"""The points of a segment, AB or \overline{AB}; empty for anything else."""
    match node:
        case Product(factors):
            names = [factor.name for factor in factors if isinstance(factor, Symbol)]
            return "".join(names) if len(names) == len(factors) and all(map(str.isupper, names)) else ""
        case Symbol(name) if name.startswith("overline ") and len(name) > len("overline x"):
            return name.removeprefix("overline ")
    return ""
