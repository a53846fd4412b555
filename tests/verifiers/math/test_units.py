r"""Units: prefixes, units made of units, and words that mean another thing than they look like."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.units import parse_unit, ratio_of_units
from verifiers.math.verifier import MathVerifier

MATH = MathVerifier()
PREFIXES = {"p": -12, "n": -9, "µ": -6, "m": -3, "k": 3, "M": 6, "G": 9}
SYMBOLS = "m s g A K mol L N J W Pa Hz C V Ω F Wb H eV cal bit B".split()
DERIVED = {
    "L": "dm^3", "N": r"kg \cdot m/s^2", "J": "N m", "W": "J/s", "Pa": "N/m^2", "C": "A s", "V": "W/A",
    "Ω": "V/A", "F": "C/V", "T": "Wb/m^2", "Hz": "s^{-1}",
}  # fmt: skip


def is_same(gold: str, answer: str) -> bool:
    return MATH.verify(f"\\boxed{{{answer}}}", MATH.parse_reference(gold)).score == 1.0


def ratio(gold: str, response: str) -> Fraction | None:
    return ratio_of_units(parse_unit(gold), parse_unit(response))


@given(
    st.integers(2, 999),
    st.sampled_from(SYMBOLS),
    st.lists(st.sampled_from(list(PREFIXES)), min_size=2, max_size=2, unique=True),
    st.sampled_from([r"\text{{ {}}}", r"\,\mathrm{{{}}}", r" {}"]),
)
@settings(max_examples=100)
def test_a_prefix_scales_its_unit_and_keeps_its_case(
    number: int, symbol: str, prefixes: list[str], spelling: str
) -> None:
    gold, other = (f"{number}{spelling.format(prefix + symbol)}" for prefix in prefixes)
    assert is_same(gold, gold)
    assert not is_same(gold, other)
    factor = Fraction(10) ** (PREFIXES[prefixes[0]] - PREFIXES[prefixes[1]])
    assert ratio(prefixes[1] + symbol, prefixes[0] + symbol) == factor


@pytest.mark.parametrize(("symbol", "definition"), DERIVED.items())
def test_a_unit_is_what_it_is_defined_as(symbol: str, definition: str) -> None:
    assert ratio(symbol, definition) == ratio(definition, symbol) == 1
    assert is_same(f"7\\text{{ k{symbol}}}", f"7000\\ \\mathrm{{{definition}}}")
    assert not is_same(f"7\\text{{ {symbol}}}", f"8\\text{{ {definition}}}")
    assert ratio(symbol, f"{definition} m") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("years", "light years"), ("miles", "nautical miles"), ("days", "business days"),
        ("ounces", "fluid ounces"), ("apples", "apple trees"), ("boxes of apples", "apples"),
        ("widgets", "gadgets"), ("students per class", "students"), ("litres per person", "litres"),
        ("A", "mA"), ("in", "ft"), ("Gb", "GB"), ("mW", "MW"), ("Nm", "nm"), ("Mm", "mm"),
        ("degrees Celsius", "degrees Fahrenheit"), ("lb", "£"), ("m/s", "m/s^2"),
    ],
)  # fmt: skip
def test_other_words_are_another_unit(one: str, other: str) -> None:
    assert ratio(one, other) != 1
    assert ratio(other, one) != 1
    assert ratio(other, other) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("apples", "red apples"), ("inches", "inches of snow"), ("in", "inches"), ("sq in", "square inches"),
        ("pounds", "£"), ("pounds", "lb"), ("tons", "tonnes"), ("days", "full days"), ("KG", "kg"),
        ("Km", "km"), ("MHZ", "MHz"), ("Nm", "J"), ("C", "degrees Celsius"),
        ("kilometers per hour", "km/h"), ("milliseconds", "ms"),
    ],
)  # fmt: skip
def test_the_same_unit_in_other_words(one: str, other: str) -> None:
    assert ratio(one, other) == ratio(other, one) == 1


@given(st.integers(1, 360))
@settings(max_examples=30)
def test_degrees_are_written_with_a_sign_or_in_words_and_converted_to_radians(degrees: int) -> None:
    value = Fraction(degrees, 180)
    radians = f"\\frac{{{value.numerator}\\pi}}{{{value.denominator}}}\\text{{ rad}}"
    for gold in (f"{degrees}^\\circ", f"{degrees}\\text{{ degrees}}"):
        assert is_same(gold, f"{degrees} degrees")
        assert is_same(gold, radians)
        assert is_same(radians, gold)
        assert not is_same(gold, f"{degrees}\\text{{ rad}}")
    assert not is_same(radians, f"{degrees}\\text{{ rad}}")
    assert is_same(f"{degrees}^\\circ\\text{{C}}", f"{degrees}\\text{{ degrees Celsius}}")


def test_symbols_are_units_where_they_stand_behind_a_number_and_letters_elsewhere() -> None:
    assert is_same(r"5\text{ mV}", "5 mV")
    assert not is_same("3kT", "3")
    assert not is_same(r"\frac{3}{2} kT", r"\frac{3}{2}")
    assert not is_same("nRT", "RT")
