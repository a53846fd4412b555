r"""LaTeX environments inside an answer: matrices, determinants, cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifiers.math.nodes import Call, Listing, Matrix, Node, Piecewise, Text
from verifiers.math.tokens import Unreadable

if TYPE_CHECKING:
    from verifiers.math.primary import PrimaryParser

__all__ = ["read_environment"]

_MATRICES = {
    "pmatrix",
    "bmatrix",
    "matrix",
    "smallmatrix",
    "Bmatrix",
    "array",
    "psmallmatrix",
    "bsmallmatrix",
}
_PLAIN = {"aligned", "align", "equation", "gathered", "split", "align*", "equation*"}


def read_environment(parser: PrimaryParser) -> Node:
    r"""The node of \begin{name} ... \end{name}; the parser stands at \begin."""
    parser.expect(r"\begin")
    name = parser.raw_argument()
    if name == "array" and parser.is_operator("{"):
        parser.raw_argument()
    if name in _PLAIN or (name == "cases" and not parser.environment_has("&")):
        node = _lines(parser)
    elif name == "cases":
        node = _cases(parser)
    elif name in _MATRICES or name == "vmatrix":
        rows = _rows(parser)
        if len({len(row) for row in rows}) != 1:
            raise Unreadable("a matrix with rows of different lengths")
        matrix = Matrix(rows)
        node = Call("det", (matrix,)) if name == "vmatrix" else matrix
    else:
        raise Unreadable(f"the environment {name!r}")
    parser.expect(r"\end")
    if parser.raw_argument() != name:
        raise Unreadable(f"the environment {name!r} ends with another name")
    return node


def _lines(parser: PrimaryParser) -> Node:
    """Formulas one below the other, all of which hold; & only aligns them."""
    parser.drop_from_environment("&")
    items: list[Node] = []
    while not parser.is_operator(r"\end"):
        items.append(parser.listing())
        if not parser.is_operator(r"\\"):
            break
        parser.advance()
    if not items:
        raise Unreadable("an empty environment")
    return items[0] if len(items) == 1 else Listing(tuple(items), "and")


def _rows(parser: PrimaryParser) -> tuple[tuple[Node, ...], ...]:
    rows: list[tuple[Node, ...]] = []
    while not parser.is_operator(r"\end"):
        if parser.is_operator(r"\hline"):
            parser.advance()
            continue
        cells = [parser.relation()]
        while parser.is_operator("&"):
            parser.advance()
            cells.append(parser.relation())
        rows.append(tuple(cells))
        if not parser.is_operator(r"\\"):
            break
        parser.advance()
    if not rows:
        raise Unreadable("an empty matrix")
    return tuple(rows)


def _cases(parser: PrimaryParser) -> Node:
    pieces: list[tuple[Node, Node]] = []
    while not parser.is_operator(r"\end"):
        value = parser.relation()
        if parser.is_operator(","):
            parser.advance()
        if not parser.is_operator("&"):
            raise Unreadable("cases without conditions")
        parser.advance()
        pieces.append((value, _condition(parser)))
        if not parser.is_operator(r"\\"):
            break
        parser.advance()
    return Piecewise(tuple(pieces))


def _condition(parser: PrimaryParser) -> Node:
    token = parser.here
    if token.kind in ("text", "word"):
        words = token.value.strip(" ~").casefold().rstrip(",")
        if words in ("otherwise", "else"):
            parser.advance()
            return Text("otherwise")
        if words in ("if", "for", "when"):
            parser.advance()
    node = parser.listing()
    if parser.is_operator("."):
        parser.advance()
    return node
