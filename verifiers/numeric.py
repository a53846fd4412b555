"""A number within a tolerance."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from verifiers.exact import Source, TextAnswer, answer_text, response_of
from verifiers.extract import Fallback, Think
from verifiers.math.answer import read_answer
from verifiers.math.arithmetic import real_fraction
from verifiers.math.nodes import Degrees, Node, Relation
from verifiers.math.numbers import NotNumber
from verifiers.math.units import Unit, ratio_of_units
from verifiers.options import Bounds
from verifiers.verdict import Verdict, correct, no_answer, wrong


@dataclass(frozen=True, slots=True)
class NumericReference:
    value: Fraction
    unit: Unit | None


class NumericVerifier:
    """The number in the box (or a fallback, or the whole text), within an absolute or a relative tolerance.

    Correct when |answer - gold| <= max(absolute_tolerance, relative_tolerance *
    |gold|), in exact arithmetic."""

    def __init__(
        self,
        *,
        absolute_tolerance: Annotated[float, Bounds(0)] = 0.0,
        relative_tolerance: Annotated[float, Bounds(0, 1)] = 1e-6,
        source: Source = "boxed",
        fallbacks: tuple[Fallback, ...] = ("final_answer", "hashes"),
        think: Think = "optional",
    ) -> None:
        # Through repr: the decimal that the recipe says (0.1), not the binary fraction next to it.
        self._absolute = Fraction(repr(absolute_tolerance))
        self._relative = Fraction(repr(relative_tolerance))
        self._where = TextAnswer(source, fallbacks, think)

    def parse_reference(self, raw: object) -> NumericReference:
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise ValueError(f"The gold answer is {raw!r}, expected a number.")
        value, unit, problem = read_number_of(str(raw))
        if value is None:
            raise ValueError(f"The gold answer is {raw!r}, expected a number: {problem}.")
        return NumericReference(value, unit)

    def verify(self, response: str, reference: NumericReference) -> Verdict:
        answer, method, reason = answer_text(response, self._where)
        if answer is None:
            return no_answer(reason)
        shown = answer.strip()[:500]
        value, unit, problem = read_number_of(answer) if len(answer) < 4000 else (None, None, "too long")
        if value is None:
            return wrong(extracted=shown, detail=f"not a number: {problem}", method=method)
        ratio = ratio_of_units(reference.unit, unit)
        if ratio is None:
            return wrong(extracted=shown, detail="the unit is of another quantity", method=method)
        error = abs(value * ratio - reference.value)
        if error <= max(self._absolute, self._relative * abs(reference.value)):
            return correct(extracted=shown, detail="within the tolerance", method=method)
        return wrong(extracted=shown, detail=f"off by {float(error):.3g}", method=method)

    def verify_fast(self, response: str, reference: NumericReference) -> Verdict | None:
        return None

    def response_with(self, answer: str) -> str:
        return response_of(answer, self._where)


def read_number_of(text: str) -> tuple[Fraction | None, Unit | None, str]:
    """(value, unit, problem) of a text that holds one real number."""
    answer = read_answer(text)
    if not answer.readings:
        return None, None, answer.problem
    node: Node = answer.readings[0]
    if isinstance(node, Relation) and set(node.operators) <= {"=", "~"}:
        node = node.sides[-1]
    if isinstance(node, Degrees):
        node = node.value
    try:
        return real_fraction(node), answer.unit, ""
    except NotNumber as error:
        return None, None, str(error)
