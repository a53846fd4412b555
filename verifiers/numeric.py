"""A number within a tolerance."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from verifiers.exact import Source, TextAnswer, answer_text, response_of
from verifiers.extract import Fallback
from verifiers.math.answer import read_answer
from verifiers.math.arithmetic import real_fraction
from verifiers.math.nodes import Degrees, Node, Relation
from verifiers.math.numbers import NotNumber
from verifiers.math.operations import undone_operation
from verifiers.math.relations import value_of_chain
from verifiers.math.units import Unit, in_degrees, is_other_kind, ratio_of_units
from verifiers.plugins import Bounds
from verifiers.verdict import Verdict, correct, no_answer, wrong


@dataclass(frozen=True, slots=True)
class NumericReference:
    """A number as it is written, with its value and unit."""

    text: str
    node: Node
    """Its tree, with the chain that it ends."""
    value: Node
    unit: Unit | None


@dataclass(frozen=True, kw_only=True)
class NumericVerifier(TextAnswer):
    r"""The number in the box (or a fallback, or the whole text), within an absolute or a relative tolerance.

    Correct when |answer - gold| <= max(absolute_tolerance, relative_tolerance *
    |gold|), in exact arithmetic. A chain of equal sides must hold, which 43 = 42 does not. An operation left
    undone (17 \cdot 2 + 8) counts only where the gold has one of its kind, as for `math`."""

    absolute_tolerance: Annotated[float, Bounds(0)] = 0.0
    relative_tolerance: Annotated[float, Bounds(0, 1)] = 1e-6
    source: Source = "boxed"
    fallbacks: tuple[Fallback, ...] = ("final_answer", "hashes")

    def __post_init__(self) -> None:
        if math.isinf(self.absolute_tolerance):
            raise ValueError(
                "Option 'absolute_tolerance' of verifier 'numeric' is inf, expected a finite number."
            )

    def parse_reference(self, raw: object) -> NumericReference:
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise ValueError(f"The gold answer is {raw!r}, expected a number.")
        number, problem = _read(str(raw))
        if number is None:
            raise ValueError(f"The gold answer is {raw!r}, expected a number: {problem}.")
        return number

    def verify(self, response: str, reference: NumericReference) -> Verdict:
        answer, method, reason = answer_text(response, self)
        if answer is None:
            return no_answer(reason)
        shown = answer.strip()[:500]
        given, problem = _read(answer, reference) if len(answer) < 4000 else (None, "too long")
        if given is None:
            return wrong(extracted=shown, detail=f"not a number: {problem}", method=method)
        ratio = ratio_of_units(reference.unit, given.unit)
        kinds = ((given.value, reference.unit), (reference.value, given.unit))
        if ratio is None or any(is_other_kind(*kind) for kind in kinds):
            return wrong(extracted=shown, detail="the unit is of another quantity", method=method)
        wanted = _value(in_degrees(reference.value, reference.unit, given.value))
        error = abs(_value(in_degrees(given.value, given.unit, reference.value)) * ratio - wanted)
        # Through repr: the decimal that the recipe says (0.1), not the binary fraction next to it.
        absolute, relative = Fraction(repr(self.absolute_tolerance)), Fraction(repr(self.relative_tolerance))
        if error <= max(absolute, relative * abs(wanted)):
            return correct(extracted=shown, detail="within the tolerance", method=method)
        return wrong(extracted=shown, detail=f"off by {float(error):.3g}", method=method)

    def verify_fast(self, response: str, reference: NumericReference) -> Verdict | None:
        return None

    def response_with(self, answer: str) -> str:
        return response_of(answer, self)


def _read(text: str, gold: NumericReference | None = None) -> tuple[NumericReference | None, str]:
    """(the number, "") of a text that holds one real number, else (None, what is wrong with it)."""
    answer = read_answer(text)
    if not answer.readings:
        return None, answer.problem
    node = value = answer.readings[0]
    if isinstance(node, Relation):
        found = value_of_chain(gold.value if gold else node.sides[-1], node)
        if found is None:
            return None, "an equation that does not hold or gives no value"
        value = found
    try:
        _value(value)
    except NotNumber as error:
        return None, str(error)
    if gold is not None and (undone := undone_operation(gold.node, node, gold.text, answer.text)):
        return None, f"an operation is left undone ({undone})"
    return NumericReference(answer.text, node, value, answer.unit), ""


def _value(node: Node) -> Fraction:
    return real_fraction(node.value if isinstance(node, Degrees) else node)
