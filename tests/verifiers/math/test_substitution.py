"""Golds with operations: hostile answers in the pool, agreement with mpmath, what is asked of sympy."""

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math import algebra
from verifiers.math.arithmetic import real_fraction
from verifiers.math.parser import parse_answer
from verifiers.math.tokens import Unreadable
from verifiers.math.verifier import MathVerifier
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict

SUM = r"\sum_{k=1}^{10} k"
INTEGRAL = r"\int_0^1 x^2\,dx"
LIMIT = r"\lim_{x\to 0} \frac{\sin x}{x}"
DETERMINANT = r"\det\begin{pmatrix}1&2\\3&4\end{pmatrix}"
DERIVATIVE = r"\frac{d}{dx} x^3"


def matrix(size: int, entry: Callable[[int, int], str]) -> str:
    rows = (r"&".join(entry(row, column) for column in range(size)) for row in range(size))
    return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"


def triangle(size: int) -> str:
    """A matrix of ones on and above the diagonal, with 2 in the corner: its determinant is 2."""
    return matrix(size, lambda row, column: "2" if row == column == 0 else str(int(row <= column)))


HOSTILE = [
    # (gold, answer)
    (SUM, r"\sum_{k=1}^{10^{100}} k^{k}"),
    (SUM, r"\sum_{k=1}^{999999} 2^k"),
    (SUM, r"\sum_{k=1}^{10^{9^{9^9}}} k"),
    (SUM, r"\sum_{k=1}^{10} 9^{9^{9^k}}"),
    (SUM, r"\sum_{a=1}^{5000}\sum_{b=1}^{5000}\sum_{c=1}^{5000}\sum_{d=1}^{5000} abcd"),
    (SUM, r"\sum_{a=1}^{99}\frac{\sin a}{\sum_{b=1}^{a}\frac{\cos b}{\sum_{c=1}^{b} \ln c}}"),
    (SUM, r"\prod_{k=1}^{5000} k!"),
    (SUM, r"\prod_{k=1}^{900000} k!"),
    (SUM, r"\sum_{k=1}^{\infty} \frac{k^{50}}{(k^{7}+k+1)^{9}}"),
    (INTEGRAL, r"\int_0^{\infty} \sin(x^{3}+x) \ln(x^2+1) dx"),
    (INTEGRAL, r"\int_0^1 x^{x^{x^{x^{x}}}} dx"),
    (INTEGRAL, r"\int_0^1 9^{9^{9^{9^x}}} dx"),
    (INTEGRAL, r"\int_0^1 (x+a)^{60}(x+b)^{60}(x+c)^{60} dx"),
    (INTEGRAL, r"\int_0^1\int_0^1\int_0^1\int_0^1 \frac{\sin(xyzw)}{x+y+z+w} dx dy dz dw"),
    (INTEGRAL, "".join(r"\int_0^1" for _ in range(30)) + " x" + " dx" * 30),
    (LIMIT, r"\lim_{x\to\infty} \frac{e^{e^{e^{x}}}}{e^{e^{e^{x-e^{-e^x}}}}}"),
    (LIMIT, r"\lim_{n\to\infty} \sum_{k=1}^{n} \frac{\sin(k^2)}{n^2+k^2}"),
    (DETERMINANT, r"\det" + matrix(6, lambda row, column: f"x_{{{6 * row + column}}}")),
    (DETERMINANT, r"\det" + triangle(25)),
    (DETERMINANT, r"\det" + matrix(7, lambda row, column: f"x_{{{7 * row + column}}}")),
    (DETERMINANT, r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{10^{10}}"),
    (DERIVATIVE, r"\frac{d^{10}}{dx^{10}} x^{x^{x^{x}}}"),
    (r"\int x^2\,dx", r"\frac{x^{x^{x^{x^{x^{x^{x}}}}}}}{\sin(\cos(\tan(x^x)))}"),
    (r"\int x^2\,dx", "9^{9^{9^{9^x}}}"),
    ("42", r"\frac{(10^{10})!}{(10^{10}-1)!}"),
    ("42", r"\sum_{k=1}^{10^{9}} k"),
]  # fmt: skip


def boxed(answer: str) -> str:
    return f"The answer is $\\boxed{{{answer}}}$."


async def graded(pool: VerifierPool, gold: str, answer: str) -> Verdict:
    """The verdict on one answer. A fault for want of CPU time is the machine's, so it is asked again."""
    reference = pool.parse_reference("math", {}, gold)
    while True:
        verdict = await pool.verify("math", {}, boxed(answer), reference)
        if verdict.outcome is not Outcome.FAULT or "the machine is overloaded" not in verdict.detail:
            return verdict


async def test_hostile_operations_are_wrong_in_time_and_leave_the_pool_healthy() -> None:
    async with VerifierPool(num_workers=1, timeout_seconds=1.0) as pool:
        verdicts = [await graded(pool, gold, answer) for gold, answer in HOSTILE]
        healthy = await graded(pool, r"\sum_{n=0}^{\infty} \frac{1}{2^n}", "2")
        assert healthy.outcome is Outcome.CORRECT, healthy
        found = [
            (answer, verdict.detail)
            for (_, answer), verdict in zip(HOSTILE, verdicts, strict=True)
            if verdict.outcome is not Outcome.WRONG
        ]
    assert found == []


async def test_a_gold_that_sympy_never_finishes_is_wrong_for_others_and_right_for_itself() -> None:
    gold = r"\int_0^1 (x+a)^{20}(x+b)^{20}(x+c)^{5} dx"

    async with VerifierPool(timeout_seconds=0.5) as pool:
        answers = ("1", gold, gold.replace("x", "t"))
        found = [(await graded(pool, gold, answer)).outcome for answer in answers]
        assert pool.num_killed == 1
    assert found == [Outcome.WRONG, Outcome.CORRECT, Outcome.CORRECT]


def test_a_large_determinant_of_numbers_is_evaluated_and_one_too_large_to_read_is_not() -> None:
    verifier = MathVerifier()
    reference = verifier.parse_reference(r"\det" + triangle(25))
    assert verifier.verify(boxed("2"), reference).outcome is Outcome.CORRECT
    assert verifier.verify(boxed("1"), reference).outcome is Outcome.WRONG
    with pytest.raises(Unreadable, match="more than 1500 symbols"):
        parse_answer(r"\det" + triangle(50))
    small = verifier.parse_reference(DETERMINANT)
    # Above 4,000 characters a box holds no answer.
    assert verifier.verify(boxed(r"\det" + triangle(50)), small).outcome is Outcome.NO_ANSWER


def test_what_sympy_raises_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise AttributeError("a defect in sympy")

    monkeypatch.setattr(algebra.sympy, "limit", broken)
    verifier = MathVerifier()
    verdict = verifier.verify(boxed("1"), verifier.parse_reference(r"\lim_{x \to 0} \frac{\tan x}{x}"))
    assert verdict.outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r"\int_0^1 x^2", "without its dx"),
        (r"\int_0 x\,dx", "one end"),
        (r"\sum_{k=1} k", "upper end"),
        (r"\sum_{i<j} ij", "something else than a letter"),
        (r"\lim_{x=0} x", r"expected \\to"),
        (r"\lim_{(x,y)\to(0,0)} x", "letter of the limit"),
    ],
)
def test_an_operation_that_is_not_read_says_what_is_missing(text: str, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem):
        parse_answer(text)


def test_a_gold_without_operations_asks_sympy_nothing() -> None:
    code = (
        "import sys; from verifiers.math.verifier import MathVerifier; v = MathVerifier()\n"
        "for gold, answer in ((r'\\frac{\\sqrt3}{2}', r'\\frac{3}{2\\sqrt3}'), ('x^2+2x+1', '(x+1)^2'),\n"
        "                     ('55', r'\\sum_{k=1}^{10} k'), (r'\\sum_{k=1}^{10} k', '55'),\n"
        "                     (r'\\int_0^1 x^2dx', r'\\frac13')):\n"
        "    v.verify('\\\\boxed{' + answer + '}', v.parse_reference(gold))\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        # No number decides these: the values have more digits than any budget.
        (r"\frac{10000!}{9998!}", "99990000", True),
        (r"\frac{10000!}{9998!}", "99990001", False),
        (r"a+b+c+d+f+g+h+j+k+l+m+n+o", r"o+n+m+l+k+j+h+g+f+d+c+b+a", True),
        (r"a+b+c+d+f+g+h+j+k+l+m+n+o", r"o+n+m+l+k+j+h+g+f+d+c+b-a", False),
    ],
)
def test_sympy_proves_what_no_number_decides(one: str, other: str, same: bool) -> None:
    verifier = MathVerifier()
    verdict = verifier.verify(boxed(other), verifier.parse_reference(one))
    assert (verdict.outcome is Outcome.CORRECT) is same


# Agreement with mpmath on functions that are drawn at random

Function = tuple[str, Callable[[Any], Any]]
"""A function of x in LaTeX, and the same one for mpmath."""

coefficients = st.integers(-5, 5)


@st.composite
def polynomials(draw: st.DrawFn) -> Function:
    drawn = draw(st.lists(coefficients, min_size=1, max_size=4))
    text = "+".join(f"({c})x^{{{power}}}" for power, c in enumerate(drawn))
    return f"({text})", lambda x: sum(c * x**power for power, c in enumerate(drawn))


@st.composite
def functions(draw: st.DrawFn) -> Function:
    text, value = draw(polynomials())
    a = draw(st.integers(1, 3))
    forms: list[Function] = [
        (text, value),
        (rf"{text}\sin({a}x)", lambda x: value(x) * mpmath.sin(a * x)),
        (rf"{text}e^{{-{a}x}}", lambda x: value(x) * mpmath.exp(-a * x)),
        (rf"\frac{{{text}}}{{x^2+{a}}}", lambda x: value(x) / (x * x + a)),
    ]
    return draw(st.sampled_from(forms))


def value_of(text: str, values: dict[str, Fraction] | None = None) -> Any:
    node = algebra.value_of(parse_answer(text))
    return (
        mpmath.mpf(real_fraction(node, values or {}).numerator)
        / real_fraction(node, values or {}).denominator
    )


def close(one: Any, other: Any) -> bool:
    return abs(one - other) <= 1e-9 * max(1, abs(other))


@settings(max_examples=20)
@given(functions(), st.integers(-2, 1), st.integers(1, 3))
def test_integrals_by_sympy_agree_with_mpmath(function: Function, low: int, width: int) -> None:
    text, value = function
    high = low + width
    found = value_of(rf"\int_{{{low}}}^{{{high}}} {text} dx")
    assert close(found, mpmath.quad(value, [low, (low + high) / 2, high]))


@settings(max_examples=20)
@given(functions(), st.integers(1, 2), st.fractions(1, 3, max_denominator=7))
def test_derivatives_by_sympy_agree_with_mpmath(function: Function, order: int, point: Fraction) -> None:
    text, value = function
    power = f"^{{{order}}}" if order > 1 else ""
    bottom = f"dx^{order}" if order > 1 else "dx"
    expected = mpmath.diff(value, mpmath.mpf(point.numerator) / point.denominator, order)
    latex = rf"\frac{{d{power}}}{{{bottom}}} {text}"
    found = value_of(latex, {"x": point})
    assert abs(found - expected) <= 1e-6 * max(1, abs(expected))


@settings(max_examples=20)
@given(polynomials(), st.integers(0, 5), st.integers(0, 30))
def test_finite_sums_agree_with_adding_up(function: Function, low: int, length: int) -> None:
    text, value = function
    high = low + length
    expected = sum(value(Fraction(k)) for k in range(low, high + 1))
    body = text.replace("x", "k")
    verifier = MathVerifier()
    reference = verifier.parse_reference(rf"\sum_{{k={low}}}^{{{high}}} {body}")
    assert verifier.verify(boxed(str(expected)), reference).outcome is Outcome.CORRECT
    assert verifier.verify(boxed(str(expected + 1)), reference).outcome is Outcome.WRONG


@settings(max_examples=15)
@given(polynomials(), st.integers(0, 3), st.integers(2, 5))
def test_infinite_sums_by_sympy_agree_with_their_first_terms(function: Function, low: int, base: int) -> None:
    text, value = function
    body = text.replace("x", "k")
    found = value_of(rf"\sum_{{k={low}}}^{{\infty}} \frac{{{body}}}{{{base}^k}}")
    # The rest is below 2^-140. mpmath.nsum extrapolates, and is wrong where a term is 0: k - 5 over 2^k.
    expected = sum(value(k) / mpmath.mpf(base) ** k for k in range(low, low + 200))
    assert close(found, expected)


@settings(max_examples=15)
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["sin", "tan", "arctan", "sinh"]))
def test_limits_by_sympy_agree_with_the_first_term_of_the_series(a: int, b: int, name: str) -> None:
    # Each of these functions is x + O(x^3).
    found = value_of(rf"\lim_{{x\to 0}} \frac{{\{name} ({a}x)}}{{\sin ({b}x)}}")
    assert close(found, mpmath.mpf(a) / b)
