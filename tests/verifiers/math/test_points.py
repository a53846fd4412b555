r"""Functions that are equal on a window and differ outside of it, and functions that are equal everywhere.

The verdicts of single pairs are in cases/pieces.jsonl."""

import random
import re

import pytest
from flint import fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.domains import Domain
from verifiers.math.parser import parse_answer
from verifiers.math.points import Drawing
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

VALUES = MathVerifier(operations="any")
"""Compares values only, so that any way to write a function may stand for it."""

Pair = tuple[str, str]
"""Two spellings of one function of x and a."""


def outcome(gold: str, answer: str) -> Outcome:
    return VALUES.verify(f"so \\boxed{{{answer}}}", VALUES.parse_reference(gold)).outcome


# Equal on a window


def ramps(turn: str) -> list[str]:
    r"""Functions of x that are 0 up to `turn` and positive beyond it: |x-b|+x-b in many ways."""
    way = f"(x-{turn})"
    return [
        f"|x-{turn}|+{way}",
        rf"\sqrt{{{way}^2}}+{way}",
        f"({way}^2)^{{1/2}}+{way}",
        f"({way}^4)^{{0.25}}+{way}",
        rf"\sqrt{{x^2-2\cdot {turn}x+{turn}^2}}+{way}",
        rf"\frac{{\sqrt{{{way}^2}}}}{{{way}}}+1",
        rf"\frac{{{way}+|{way}|}}{{2{way}}}",
        rf"\frac{{\ln(e^{{{way}}})+\sqrt{{{way}^2}}}}{{7}}",
        rf"\max(x,{turn})-{turn}",
        rf"x-\min(x,{turn})",
        rf"\sqrt{{e^{{2x/{turn}}}-2e\cdot e^{{x/{turn}}}+e^2}}+e^{{x/{turn}}}-e",
        rf"\tanh(10^4{way})+1",
        rf"\sqrt[4]{{{way}^4}}+{way}",
    ]


def folds(turn: str) -> list[str]:
    """Functions of x that are 0 near 0, on a window whose size is about `turn`."""
    scaled = rf"\frac{{x}}{{{turn}}}"
    return [
        rf"\frac{{{turn}\ln(e^{{i{scaled}}})}}{{i}}-x",
        rf"{turn}\arcsin(\sin({scaled}))-x",
        rf"{turn}\arctan(\tan({scaled}))-x",
        rf"\lfloor {scaled}\rfloor+\lfloor -{scaled}\rfloor-\lfloor {scaled}+\frac12\rfloor+1",
        rf"\sqrt{{\cos^2({scaled})}}-\cos({scaled})",
    ]


def bump(turn: str, width: int) -> str:
    """0 but between `turn` and `turn` + 2 `width`."""
    ends = [rf"\sqrt{{(x-{turn}-{step * width})^2}}" for step in range(3)]
    return f"{ends[0]}-2{ends[1]}+{ends[2]}"


@st.composite
def hidden_differences(draw: st.DrawFn) -> str:
    magnitude = draw(st.integers(1, 6))
    turn = str(draw(st.integers(10**magnitude, 10 ** (magnitude + 1))))
    if draw(st.booleans()):
        turn = rf"\frac{{{turn}7}}{{{draw(st.integers(2, 9))}}}"
    text = draw(
        st.sampled_from(ramps(turn) + folds(turn)) | st.integers(1, 40).map(lambda width: bump(turn, width))
    )
    return re.sub(r"(?<![a-z])x(?![a-z])", "(-x)", text) if draw(st.booleans()) else text


functions = st.sampled_from(
    ["x", "10-x", "x^2+3x-1", r"\sin x", "e^{-x}", r"\frac{1}{x^2+1}", r"\sqrt{x^2+1}", "ax", r"a^2-\cos x"]
)


@given(functions, hidden_differences(), st.sampled_from(["", "-", "3", "a"]))
@settings(max_examples=150)
def test_functions_that_differ_outside_of_a_window_are_different(
    function: str, hidden: str, factor: str
) -> None:
    gold = f"{function}+0a"
    answer = rf"{function}+{factor or '1'}\cdot({hidden})" if factor != "-" else f"{function}-({hidden})"
    assert outcome(gold, answer) is Outcome.WRONG
    assert outcome(f"{answer}+0a", function) is Outcome.WRONG


@given(st.integers(1, 10**6), hidden_differences())
@settings(max_examples=30)
def test_a_letter_that_the_gold_lacks_is_in_no_answer(number: int, hidden: str) -> None:
    for answer in (f"{number}+{hidden}", rf"\frac{{{number}x}}{{x}}", f"{number}+x-x", f"{number}+0x"):
        assert outcome(str(number), answer) is Outcome.WRONG
    assert outcome(rf"\frac{{{number}x}}{{x}}", str(number)) is Outcome.CORRECT


@pytest.mark.parametrize("tower", ["e^{e^{x^3}}", "x^{x^{x^x}}", "e^{e^{e^x}}"])
def test_what_is_too_large_to_evaluate_hides_no_difference(tower: str) -> None:
    assert outcome("10-x", rf"\sqrt{{(x-10)^2}}+0\cdot {tower}") is Outcome.WRONG


# Equal everywhere


def same(*spellings: str) -> list[str]:
    return list(spellings)


@st.composite
def equal_pairs(draw: st.DrawFn, depth: int = 2) -> Pair:
    """Two spellings of one real function, by rules that hold for all real x and a."""
    if depth == 0:
        number = str(draw(st.integers(1, 10**6)))
        atom = draw(st.sampled_from(["x", "a", number, rf"(x-{number})", rf"(\frac{{x}}{{{number}}}+a)"]))
        return atom, atom
    u, v = draw(equal_pairs(depth=depth - 1))
    p, q = draw(equal_pairs(depth=depth - 1))
    rules: list[Pair] = [
        (f"({u}+{p})", f"({q}+{v})"),
        (f"({u}-{p})", f"(-({q}-{v}))"),
        (rf"{u}\cdot {p}", rf"{q}\cdot {v}"),
        (f"({u}+{p})^2", rf"(({v})^2+2\cdot {v}\cdot {q}+({q})^2)"),
        (f"|{u}|", rf"\sqrt{{({v})^2}}"),
        (f"|{u}-{p}|", rf"(({q}-{v})^2)^{{1/2}}"),
        (rf"\max({u},{p})", rf"\frac{{{v}+{q}+|{q}-{v}|}}{{2}}"),
        (rf"\frac{{{u}}}{{1+({p})^2}}", rf"{v}\cdot(1+({q})^2)^{{-1}}"),
        (rf"\ln(({u})^2+1)", rf"2\ln\sqrt{{1+({v})^2}}"),
        (rf"\sin({u}+{p})", rf"(\sin({v})\cos({q})+\cos({v})\sin({q}))"),
        (rf"\cos(2\cdot {u})", rf"(1-2(\sin({v}))^2)"),
        (rf"e^{{\cos({u})}}", rf"\exp(\sin(\frac{{\pi}}{{2}}-{v}))"),
        (rf"\arctan({u})", rf"\arcsin\frac{{{v}}}{{\sqrt{{1+({v})^2}}}}"),
        (rf"\lfloor {u}\rfloor", rf"(-\lceil -({v})\rceil)"),
    ]
    one, other = draw(st.sampled_from(rules))
    return (one, other) if draw(st.booleans()) else (other, one)


@given(equal_pairs())
@settings(max_examples=200)
def test_rewritten_expressions_stay_the_same(pair: Pair) -> None:
    one, other = pair
    assert outcome(f"{one}+ax-ax", other) is Outcome.CORRECT
    assert outcome(f"{one}+ax-ax", f"{other}+10^{{-9}}") is Outcome.WRONG


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\sqrt{x^2}", "|x|"), (r"\ln(x^2)", r"2\ln|x|"), ("x", r"\ln(e^x)"), ("x", r"e^{\ln x}"),
        (r"n\ln n", r"\ln(n^n)"), ("n", r"\frac{n!}{(n-1)!}"), (r"\binom{2n}{n}", r"\frac{(2n)!}{(n!)^2}"),
        (r"\tanh x", r"\frac{e^x-e^{-x}}{e^x+e^{-x}}"), (r"\sqrt{a}\sqrt{b}", r"\sqrt{ab}"),
        (r"\ln(x-100)", r"\ln(2x-200)-\ln 2"), (r"e^{ix}", r"\cos x+i\sin x"),
        (r"\frac{x^{100}-1}{x-1}(x-1)", "x^{100}-1"), ("2^n+3^n", r"e^{n\ln 2}+e^{n\ln 3}"),
    ],
)  # fmt: skip
def test_functions_are_compared_where_both_are_real(gold: str, answer: str) -> None:
    assert outcome(gold, answer) is Outcome.CORRECT
    assert outcome(answer, gold) is Outcome.CORRECT


# The points themselves


def drawing(seed: int, **domains: Domain) -> Drawing:
    return Drawing(random.Random(seed), domains or {"x": Domain.REAL})


def test_spread_points_have_every_magnitude_with_both_signs_for_each_letter() -> None:
    points = list(drawing(1, x=Domain.REAL, y=Domain.REAL).spread())
    for name in ("x", "y"):
        for sign in (1, -1):
            sizes = [abs(point[name]) for point in points if sign * point[name] > 0]
            assert min(sizes) < fmpq(1, 1000) and max(sizes) > 10**12
            assert any(10**6 < size < 10**8 for size in sizes)


def test_each_piece_of_either_side_has_a_point() -> None:
    sides = (parse_answer(r"|x-1000|"), parse_answer(r"\sqrt{(3x-3003)^2}+\sqrt{x^2+80x+1600}"))
    values = [piece.points[0]["x"] for piece in drawing(1).pieces(sides)]
    cuts = [-(10**9), -40, 1000, 1001, 10**9]
    for low, high in zip(cuts, cuts[1:], strict=False):
        assert any(low < value < high for value in values)


def test_points_depend_on_the_source_alone() -> None:
    drawn = [drawing(seed).near(0) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_no_two_pairs_share_the_denominator_of_their_points() -> None:
    assert len({drawing(seed).prime for seed in range(50)}) == 50
