r"""Pairs of each type that agree where all letters are real numbers near 0, and differ in the type's domain.

Each row has spellings that are equal in the domain, then some that differ there."""

import pytest
from flint import fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.answer import read_answer
from verifiers.math.parser import parse_answer
from verifiers.math.verifier import MathReference, MathVerifier
from verifiers.verdict import Outcome

MATH = MathVerifier(operations="any")


def is_right(gold: str, answer: str) -> bool:
    return MATH.verify(f"so \\boxed{{{answer}}}", MATH.parse_reference(gold)).outcome is Outcome.CORRECT


@given(st.integers(2, 60), st.integers(1, 59), st.sampled_from("kmn"))
@settings(max_examples=60, deadline=None)
def test_letters_of_integer_functions_are_all_integers(modulus: int, shift: int, letter: str) -> None:
    floor = rf"\lfloor \frac{{{letter}}}{{{modulus}}}\rfloor"
    assert is_right(floor, rf"\lceil \frac{{{letter}-{modulus - 1}}}{{{modulus}}}\rceil")
    assert not is_right(floor, rf"\lceil \frac{{{letter}}}{{{modulus}}}\rceil-1")
    gcd = rf"\gcd({letter},{modulus})"
    assert is_right(gcd, rf"\gcd({letter}+{modulus},{modulus})")
    assert is_right(gcd, rf"\gcd({letter}+{shift},{modulus})") is (shift % modulus == 0)
    remainder = rf"{letter} \bmod {modulus}"
    assert is_right(remainder, rf"({letter}+{modulus}) \bmod {modulus}")
    assert not is_right(remainder, letter)


@given(st.integers(1, 10**6), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_real_letters_are_at_jumps_too(turn: int, scale: int) -> None:
    inner = rf"\frac{{x-{turn}}}{{{scale}}}"
    assert is_right(rf"\lceil {inner}\rceil", rf"-\lfloor -{inner}\rfloor")
    assert not is_right(rf"\lceil {inner}\rceil", rf"\lfloor {inner}\rfloor+1")


@given(st.integers(-9, 9).filter(bool), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_families_are_compared_at_integers_of_both_signs(step: int, start: int) -> None:
    gold = rf"{start}+{step}k, k \in \mathbb{{Z}}"
    assert is_right(gold, rf"{start + step}-{step}n, n \in \mathbb{{Z}}")
    assert not is_right(gold, rf"{start}+{step}|k|, k \in \mathbb{{Z}}")
    assert not is_right(gold, rf"{start}+{step}k+k(k-1)(k-2)(k-5), k \in \mathbb{{Z}}")


@given(
    st.integers(10, 400), st.sampled_from([r"\sqrt2", r"\pi", r"\sin 20^\circ", r"\ln 3", r"\sin x", "e^x"])
)
@settings(max_examples=60, deadline=None)
def test_what_is_near_is_not_equal(digits: int, value: str) -> None:
    assert not is_right(value, rf"{value}\cdot\tanh {digits}")
    assert not is_right(value, rf"{value}+10^{{-{digits}}}")
    assert not is_right(value, rf"{value}\cdot\sqrt[10^{{{digits}}}]{{2}}")


@given(
    st.fractions(min_value=1, max_value=2, max_denominator=10**300).filter(lambda one: one.denominator > 10)
)
@settings(max_examples=40, deadline=None)
def test_no_fraction_is_a_root(near: object) -> None:
    # A step of Newton's squares the distance.
    best = (fmpq(near.numerator, near.denominator) + 2 / fmpq(near.numerator, near.denominator)) / 2  # type: ignore[attr-defined]
    for _ in range(4):
        best = (best + 2 / best) / 2
    if best.height_bits() < 4000:
        assert not is_right(r"\sqrt2", rf"\frac{{{best.p}}}{{{best.q}}}")


ROWS = [
    ("|z|^2", [r"z\bar z", r"(\operatorname{Re} z)^2+(\operatorname{Im} z)^2"], ["z^2"]),
    (r"\operatorname{Re} z", [r"\frac{z+\bar z}{2}"], ["z", "|z|"]),
    (r"\vec a\times\vec b", [r"-\vec b\times\vec a", r"\mathbf a\times\mathbf b"],
     [r"\vec b\times\vec a", "ab"]),
    (r"\overrightarrow{AB}", [r"\vec{AB}", r"-\vec{BA}"], [r"\vec{BA}", "AB"]),
    ("v", [r"\vec v", r"\mathbf v"], [r"\vec u"]),
    ("42", [], [r"\vec{42}"]),
    ("P^{-1}AP", [r"P^{-1}(AP)"], ["A", "PAP^{-1}"]),
    ("(AB)^{-1}", ["B^{-1}A^{-1}"], ["A^{-1}B^{-1}"]),
    ("AB-BA", ["-(BA-AB)"], ["0", "BA-AB"]),
    (r"\frac{dy}{dx}", ["dy/dx"], [r"\frac yx", r"\frac{dx}{dy}"]),
    (r"\frac{dy}{dx}=2x", ["2x"], ["x"]),
    ("d(n)", ["d(n)"], ["dn", "n"]),
    ("x>1 and x<2", ["1<x<2", "(1,2)"], ["x>1 or x<2"]),
    ("x=1, y=2", ["x=1 and y=2", "(1,2)"], ["x=1 or y=2"]),
    ("x=2 or x=3", ["2 and 3", "2, 3"], ["2"]),
    ("5:30 PM", ["17:30", "5:30"], ["5/30", r"\frac16"]),
    (r"\binom nk", ["{n\\choose k}", "_nC_k", "C(n,k)", r"\frac{n!}{k!(n-k)!}", r"\binom n{n-k}"],
     [r"\frac nk"]),
    (r"x\equiv 3 \pmod 7", [r"x\equiv 3 (7)", "7k+3", r"x \equiv 10 \pmod 7"], ["3k+7", "7k+4"]),
    ("C_1e^x+C_2e^{-x}", ["Ae^x+Be^{-x}", "C_2e^x-C_1e^{-x}"], ["C_1e^x+C_1e^{-x}", "C_1e^{2x}+C_2e^{-x}"]),
    (r"\ln|x|+C", [r"\ln|Cx|", r"\ln|x|-C"], [r"\ln|x|"]),
    (r"\begin{cases}x & x\ge 0\\ -x & x<0\end{cases}",
     [r"\begin{cases}x & x>0\\ -x & \text{otherwise}\end{cases}", "|x|"],
     [r"\begin{cases}x & x>1\\ -x & \text{otherwise}\end{cases}", "x"]),
    (r"\mathrm{H_2O}", [r"\text{H}_2\text{O}", r"\ce{H2O}"], [r"\mathrm{HO_2}"]),
    (r"\mathrm{CO}", [r"\text{CO}"], [r"\mathrm{Co}"]),
    ("2^{82589933}-1", ["2^{82589933}-1"], ["2^{82589933}", "2^{82589933}+1"]),
    (r"\sin x", [r"\cos(x-\frac{\pi}{2})"], [r"\sin(x+194\cdot 10^6\pi x)"]),
    ("1/6", ["0.1666..."], ["0.1676..."]),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "same", "other"), ROWS, ids=[row[0] for row in ROWS])
def test_expressions_are_compared_in_the_domain_of_their_type(
    gold: str, same: list[str], other: list[str]
) -> None:
    assert [answer for answer in same if not is_right(gold, answer)] == []
    assert [answer for answer in other if is_right(gold, answer)] == []


@pytest.mark.parametrize("text", ["+2", "-2", "+2.50", "-2.5", "+2/4", "-2/4", "7", "0.5"])
def test_plain_literals_are_read_as_the_grammar_reads_them(text: str) -> None:
    assert read_answer(text, is_gold=True).readings == (parse_answer(text),)


def test_a_gold_that_could_be_a_product_names_its_calls() -> None:
    def calls(gold: str) -> tuple[str, ...]:
        reference: MathReference = MATH.parse_reference(gold)
        return reference.applications

    assert calls("2d(n)+1") == ("d(...)",)
    assert calls("p(x)=x^2") == calls("f(x)") == calls("k(n+1)") == ()
