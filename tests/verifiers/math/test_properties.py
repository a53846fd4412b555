"""What must hold of the math verifier whatever the answer: symmetry, spelling, limits."""

import string
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

MATH = MathVerifier()
INTEGERS = st.integers(min_value=-(10**12), max_value=10**12)
FRACTIONS = st.fractions(min_value=-1000, max_value=1000, max_denominator=500)


VALUES = MathVerifier(operations="any")
"""Compares values only, so that 3 + 4 is 7."""


def outcome(gold: str, answer: str, math: MathVerifier = MATH) -> Outcome:
    return math.verify(f"so \\boxed{{{answer}}}", math.parse_reference(gold)).outcome


def expressions() -> st.SearchStrategy[str]:
    """LaTeX of real expressions in x and y, none of them undefined everywhere."""
    atoms = st.one_of(
        st.integers(1, 20).map(str), st.sampled_from(["x", "y", "\\pi", "e", "\\sqrt{2}", "\\frac{1}{3}"])
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]} + {pair[1]})"),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]} - {pair[1]} + 1)"),
            st.tuples(inner, inner).map(lambda pair: f"{pair[0]} \\cdot {pair[1]}"),
            st.tuples(inner, inner).map(lambda pair: f"\\frac{{{pair[0]}}}{{1 + ({pair[1]})^2}}"),
            inner.map(lambda node: f"\\sin({node})"),
            inner.map(lambda node: f"\\sqrt{{1 + ({node})^2}}"),
            inner.map(lambda node: f"({node})^2"),
        ),
        max_leaves=6,
    )


@given(expressions())
@settings(max_examples=120)
def test_every_answer_is_correct_for_itself(text: str) -> None:
    assert outcome(text, text) is Outcome.CORRECT


@given(expressions())
@settings(max_examples=80)
def test_an_answer_with_something_added_is_wrong(text: str) -> None:
    assert outcome(text, f"{text} + 1") is Outcome.WRONG
    assert outcome(text, f"{text} + 10^{{-25}}") is Outcome.WRONG


@given(expressions())
@settings(max_examples=80)
def test_adding_nothing_changes_nothing(text: str) -> None:
    assert outcome(text, f"{text} + 0", VALUES) is Outcome.CORRECT
    assert outcome(text, f"1 \\cdot ({text})", VALUES) is Outcome.CORRECT
    assert outcome(text, f"\\frac{{2 ({text})}}{{2}}", VALUES) is Outcome.CORRECT
    assert outcome(text, f"3 + ({text}) - 3", VALUES) is Outcome.CORRECT


@given(expressions(), expressions())
@settings(max_examples=120)
def test_equality_of_expressions_is_symmetric(one: str, other: str) -> None:
    assert outcome(one, other, VALUES) is outcome(other, one, VALUES)


@given(expressions(), expressions())
@settings(max_examples=80)
def test_the_rule_of_operations_refuses_some_equal_answers_and_accepts_no_other(one: str, other: str) -> None:
    for answer in (other, f"{one} + 0", f"2 \\cdot ({one}) - ({one})"):
        if outcome(one, answer) is Outcome.CORRECT:
            assert outcome(one, answer, VALUES) is Outcome.CORRECT


@given(st.integers(2, 10**6), st.integers(2, 10**6))
@settings(max_examples=80)
def test_arithmetic_on_integers_is_an_answer_only_to_arithmetic(one: int, other: int) -> None:
    for gold, answer in (
        (one * other, f"{one} \\cdot {other}"),
        (one + other, f"{one} + {other}"),
        (one - other, f"{one} - {other}"),
    ):
        assert outcome(str(gold), answer) is Outcome.WRONG
        assert outcome(str(gold), answer, VALUES) is Outcome.CORRECT
        assert outcome(str(gold), f"{answer} = {gold}") is Outcome.CORRECT
        assert outcome(f"{answer} + 1 - 1", answer) is Outcome.CORRECT


@given(st.integers(2, 99), st.integers(2, 20), st.integers(2, 50), st.sampled_from(["", "-"]))
@settings(max_examples=80)
def test_powers_and_fractions_are_answers(base: int, power: int, factor: int, sign: str) -> None:
    value = base**power
    assert outcome(f"{sign}{value}", f"{sign}{base}^{{{power}}}") is Outcome.CORRECT
    assert outcome(f"{sign}{factor * value}", f"{sign}{factor} \\cdot {base}^{{{power}}}") is Outcome.CORRECT
    assert outcome(str(value - 1), f"{base}^{{{power}}} - 1") is Outcome.CORRECT
    assert (
        outcome(f"\\frac{{{value - 1}}}{{{value}}}", f"1 - \\frac{{1}}{{{base}^{{{power}}}}}")
        is Outcome.CORRECT
    )


@given(st.integers(1000, 10**12))
@settings(max_examples=80)
def test_a_grouped_number_is_that_number_and_no_list(number: int) -> None:
    grouped, groups = f"{number:,}", f"{number:,}".split(",")
    assert outcome(str(number), grouped) is outcome(grouped, str(number)) is Outcome.CORRECT
    assert outcome(str(number), grouped.replace(",", ",\\! ")) is Outcome.CORRECT
    for brackets in ("{}", "({})", "\\{{{}\\}}"):
        assert outcome(grouped, brackets.format(", ".join(groups))) is Outcome.WRONG
        assert (
            outcome(brackets.format(", ".join(str(int(group)) for group in groups)), grouped) is Outcome.WRONG
        )


@given(
    INTEGERS.filter(bool),
    st.sampled_from(["-\\boxed{{{}}}", "$x = -\\boxed{{{}}}$", "\\[ -\\boxed{{{}}} \\]"]),
)
@settings(max_examples=60)
def test_the_sign_before_a_box_counts(number: int, spelling: str) -> None:
    response = spelling.format(abs(number))
    assert MATH.verify(response, MATH.parse_reference(str(-abs(number)))).outcome is Outcome.CORRECT
    assert MATH.verify(response, MATH.parse_reference(str(abs(number)))).outcome is Outcome.WRONG


@given(
    INTEGERS,
    st.sampled_from(
        ["{}", "${}$", "\\text{{{}}}", "{}.", "x = {}", "{}.0", "\\left({}\\right)", "{}\\text{{ cm}}"]
    ),
)
@settings(max_examples=150)
def test_spellings_of_an_integer_are_that_integer_and_no_other(number: int, spelling: str) -> None:
    assert outcome(str(number), spelling.format(number)) is Outcome.CORRECT
    assert outcome(str(number), spelling.format(number + 1)) is Outcome.WRONG


@given(FRACTIONS)
@settings(max_examples=150)
def test_spellings_of_a_fraction_are_equal(value: Fraction) -> None:
    top, bottom = value.numerator, value.denominator
    gold = f"\\frac{{{top}}}{{{bottom}}}"
    for spelling in (
        f"{top}/{bottom}",
        f"\\dfrac{{{top}}}{{{bottom}}}",
        f"\\frac{{{3 * top}}}{{{3 * bottom}}}",
        f"{top} \\div {bottom}",
    ):
        assert outcome(gold, spelling) is Outcome.CORRECT, spelling
    if abs(value) > 1 and value.denominator > 1:
        whole, rest = divmod(abs(top), bottom)
        sign = "-" if value < 0 else ""
        assert outcome(gold, f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}") is Outcome.CORRECT
    assert outcome(gold, f"\\frac{{{top + 1}}}{{{bottom}}}") is Outcome.WRONG


@given(
    st.decimals(min_value=-1000, max_value=1000, places=4, allow_nan=False), st.integers(-9, 9).filter(bool)
)
@settings(max_examples=150)
def test_decimals_are_exact(value: object, change: int) -> None:
    assert outcome(str(value), f"{value}00") is Outcome.CORRECT
    assert outcome(str(value), str(value + change * type(value)("0.0001"))) is Outcome.WRONG  # type: ignore[operator, call-arg]


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.randoms())
@settings(max_examples=100)
def test_order_matters_in_a_tuple_and_not_in_a_set(numbers: list[int], source: object) -> None:
    shuffled = list(numbers)
    source.shuffle(shuffled)  # type: ignore[attr-defined]
    same = numbers == shuffled
    gold, answer = ", ".join(map(str, numbers)), ", ".join(map(str, shuffled))
    assert outcome(f"\\{{{gold}\\}}", f"\\{{{answer}\\}}") is Outcome.CORRECT
    assert outcome(gold, answer) is Outcome.CORRECT
    assert outcome(f"({gold})", f"({answer})") is (Outcome.CORRECT if same else Outcome.WRONG)
    assert outcome(f"\\{{{gold}\\}}", f"\\{{{answer}, 99\\}}") is Outcome.WRONG


@given(st.integers(-50, 50), st.integers(1, 50), st.booleans(), st.booleans())
@settings(max_examples=100)
def test_an_interval_is_its_inequality_with_the_same_ends(
    low: int, size: int, left: bool, right: bool
) -> None:
    def inequality(with_left: bool, with_right: bool) -> str:
        signs = {True: "\\le", False: "<"}
        return f"{low} {signs[with_left]} x {signs[with_right]} {low + size}"

    interval = f"{'[' if left else '('}{low}, {low + size}{']' if right else ')'}"
    assert outcome(interval, inequality(left, right)) is Outcome.CORRECT
    assert outcome(inequality(left, right), interval) is Outcome.CORRECT
    assert outcome(interval, inequality(not left, right)) is Outcome.WRONG
    assert outcome(interval, inequality(left, not right)) is Outcome.WRONG


LATEX_PIECES = st.lists(
    st.sampled_from(
        ["\\frac", "\\sqrt", "{", "}", "(", ")", "[", "]", "^", "_", "!", "|", "\\left", "\\right", "\\text{",
         "9", "99999999", "x",
         "e", "i", ",", ".", "\\infty", "\\pm", "=", "<", "\\cup", "\\{", "\\}", "\\begin{pmatrix}",
         "\\end{pmatrix}", "&", "\\\\",
         "\\sin", "\\log_", "\\binom", "\\overline", "%", "^\\circ", "\\in", "\\mathbb{Z}", " or ", "\x00",
         "\u202e", "½", "²"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@given(
    LATEX_PIECES,
    st.sampled_from(
        ["42", "\\frac{1}{2}", "x^2", "(1,2)", "x > 3", "\\{1, 2\\}", "\\text{Monday}", "1 \\pm \\sqrt{2}"]
    ),
)
@settings(max_examples=500)
def test_no_answer_raises_or_takes_long(answer: str, gold: str) -> None:
    reference = MATH.parse_reference(gold)
    started = time.thread_time()
    verdict = MATH.verify(f"\\boxed{{{answer}}}", reference)
    assert verdict.outcome is not Outcome.FAULT
    assert time.thread_time() - started < 2.0


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_arbitrary_text_is_graded_and_arbitrary_golds_are_read_or_refused(text: str) -> None:
    assert MATH.verify(text, MATH.parse_reference("42")).outcome is not Outcome.FAULT
    MATH.verify(f"\\boxed{{{text}}}", MATH.parse_reference("\\frac{1}{2}"))
    try:
        reference = MATH.parse_reference(text)
    except ValueError as error:
        assert str(error)
    else:
        MATH.verify("\\boxed{1}", reference)


@given(st.text(alphabet=string.printable, max_size=60))
@settings(max_examples=200)
def test_the_fast_path_agrees_with_the_whole_verifier(text: str) -> None:
    response = f"\\boxed{{{text}}}"
    for gold in ("42", "0.5", "\\frac{1}{2}"):
        fast = MathVerifier().verify_fast(response, MATH.parse_reference(gold))
        if fast is not None:
            assert fast.outcome is MathVerifier().verify(response, MATH.parse_reference(gold)).outcome


@pytest.mark.parametrize(
    "gold",
    ["", "  ", "\\frac{1}{", "x +", "}{", "\\boxed{", None, True, [], {"a": 1}, "$$", "((1)", "1 2 3 x7"],
)
def test_a_bad_gold_is_refused_with_a_sentence(gold: object) -> None:
    with pytest.raises(ValueError, match="gold"):
        MATH.parse_reference(gold)


@pytest.mark.parametrize(
    "answer",
    [
        "9" * 100_000,
        "{" * 10_000 + "1" + "}" * 10_000,
        "(" * 1_900 + "1" + ")" * 1_900,
        "9^{9^{9^{9}}}",
        "((((100000)!)!)!)!",
        "\\frac{1}{" * 300 + "2" + "}" * 300,
        "x^{" * 300 + "2" + "}" * 300,
        "+".join(["x^{99}"] * 400),
        "(x+1)^{99999}",
        "(x+y+z+1)^{5000}",
        "2^{199999} \\cdot 3^{99999}",
        "\\sin(10^{1000000})",
        "\\sin(\\sin(\\sin(10^{29})))",
        "e^{e^{e^{e^{e}}}}",
        "\\binom{1000000}{500000}",
        "1000000!",
        ", ".join(map(str, range(900))),
        "\\{" + ", ".join(f"\\sqrt{{{number}}}" for number in range(200)) + "\\}",
        "|" * 1000,
        "\\sqrt{" * 500 + "2" + "}" * 500,
        "\\text{" * 300 + "a" + "}" * 300,
        "\\mathrm{\\pi" * 400 + "}" * 400,
        "1 \\pm " * 200 + "1",
        "-" * 3000 + "1",
        "'" * 3000,
        "x" + "'" * 3000,
        "1" + "!" * 3000,
        "a" * 3900,
        "1.5e5000 \\cdot 1.5e5000",
        "0." + "\\overline{" + "123456789" * 100 + "}",
        "10^{-4999} + 10^{4999}",
        "\\gcd(" + ",".join(["123456789123456789"] * 150) + ")",
        "2^{1}^{1}" * 100,
        " \\cdot ".join(["17^{99999}"] * 200),
        "(" * 35 + "1+1" + ")+1" * 35,
        "\\text{" + "red, " * 700 + "}",
        "c + " * 900 + "c",
        " < ".join("abcdefgh" * 60),
        "5 \\text{ million " + "ordered pairs " * 200 + "}",
        "1,000," * 600 + "1",
    ],
)
@pytest.mark.parametrize("gold", ["42", "x^2 + 1", "\\sqrt{2} + \\pi", "\\{1, \\sqrt{3}, 5\\}"])
def test_a_bomb_is_bounded_in_process_without_the_pool(answer: str, gold: str) -> None:
    reference = MATH.parse_reference(gold)
    started = time.thread_time()
    verdict = MathVerifier().verify(f"\\boxed{{{answer}}}", reference)
    assert verdict.outcome in (Outcome.WRONG, Outcome.NO_ANSWER)
    assert time.thread_time() - started < 2.0
