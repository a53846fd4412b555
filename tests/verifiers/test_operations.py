r"""Which operations an answer may leave undone, on the trees. The verdicts are in cases/echoes.jsonl."""

import pytest

from verifiers.math.nodes import Call, Listing, Node, Relation
from verifiers.math.operations import ARITHMETIC, foreign_operation, operation_kinds
from verifiers.math.parser import parse_answer
from verifiers.math.verifier import MathVerifier
from verifiers.registry import load_verifier


def foreign(gold: str, response: str) -> str | None:
    return foreign_operation(parse_answer(gold), parse_answer(response))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (r"17 \cdot 23", ARITHMETIC), (r"3 + 4", ARITHMETIC), (r"3 - 4", ARITHMETIC),
        (r"(17)(23)", ARITHMETIC),
        (r"2 \cdot 3 \cdot 5^2", ARITHMETIC), (r"\frac{2 \cdot 3}{7}", ARITHMETIC), (r"2^{3+4}", ARITHMETIC),
        (r"1.5 + 2.5", ARITHMETIC), (r"5! ", "factorial or binomial"), (r"\gcd(4, 6)", "gcd or lcm"),
        (r"\sin 1", "trigonometry"), (r"\arctan 1", "trigonometry"), (r"\lfloor e \rfloor", "rounding"),
        (r"\max(1, 2)", "maximum or minimum"), (r"|-3|", "absolute value"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "determinant"),
        (r"2^{10}", None), (r"3 \cdot 2^5", None), (r"2\sqrt{3}+1", None), (r"1-\frac{1}{2^{10}}", None),
        (r"5 \cdot 10^3", None), (r"-3", None), (r"\frac{1}{2}+\frac{\pi}{3}", None), (r"2\frac{1}{2}", None),
        (r"-2\sqrt{5}", None), (r"\log_2 3 + e", None), (r"1 + 2i", None), (r"30^\circ 15'", None),
        (r"2^3 \cdot 3^2 \cdot 5", None), (r"\frac{1}{2} + \frac{1}{3}", None),
    ],
)  # fmt: skip
def test_a_number_is_an_answer_to_a_number_unless_an_operation_is_left_undone(
    answer: str, kind: str | None
) -> None:
    assert foreign("7", answer) == kind


def test_a_gold_allows_the_kinds_of_operations_that_it_has() -> None:
    assert foreign(r"\sin 20^\circ", r"\cos 70^\circ") is None
    assert foreign(r"\sin 20^\circ", r"\gcd(1, 2) \cdot \cos 70^\circ") == "gcd or lcm"
    assert foreign(r"\binom{10}{3}", r"\frac{10 \cdot 9 \cdot 8}{3!}") is None
    assert foreign(r"17 \cdot 23", r"391 + 0") is None


def test_in_the_letters_of_the_gold_factorials_and_products_are_closed_forms() -> None:
    assert foreign(r"\frac{n(n-1)}{2}", r"\binom{n}{2}") is None
    assert foreign("6x", r"2 \cdot 3x") is None
    assert foreign("6", r"2 \cdot 3x^0") == ARITHMETIC
    assert foreign("1", r"\frac{n!}{n!}") == "factorial or binomial"


def test_one_side_of_a_chain_without_an_operation_is_the_answer() -> None:
    assert foreign("120", "5! = 120") is None
    assert foreign("120", "x = 5!") == "factorial or binomial"
    assert foreign("0.87", r"\sin 60^\circ \approx 0.87") is None
    assert foreign("x^2+y^2=25", r"x^2+y^2=20+5") == ARITHMETIC


def test_a_call_is_told_by_its_name() -> None:
    integral: Node = Call("integral", (parse_answer("x"),))
    assert foreign_operation(parse_answer("7"), integral) == "integral"
    assert foreign_operation(integral, integral) is None
    assert operation_kinds(Listing((integral, parse_answer("5!")), ",")) >= {
        "integral",
        "factorial or binomial",
    }
    assert foreign_operation(parse_answer("7"), Relation(("=",), (integral, parse_answer("7")))) is None


def test_the_verdict_names_the_operation_and_the_option() -> None:
    math = MathVerifier()
    verdict = math.verify(r"\boxed{17 \cdot 23}", math.parse_reference("391"))
    assert ARITHMETIC in verdict.detail and "operations: any" in verdict.detail
    with pytest.raises(ValueError, match="operations"):
        load_verifier("math", {"operations": "all"})
