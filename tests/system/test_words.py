"""Numbers are rounded as people were taught, and long texts keep their ends."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest

from asyncrl.system.words import as_percent, fixed, shortened, signed


def exact(share: Fraction, digits: int) -> str:
    scaled = Decimal(100 * share.numerator) / Decimal(share.denominator)
    return f"{scaled.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)}%"


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_half_goes_away_from_zero_in_every_share_of_few_tasks(digits: int) -> None:
    for n in range(1, 65):
        for k in range(n + 1):
            assert as_percent(k / n, digits) == exact(Fraction(k, n), digits), f"{k} of {n}"
            assert as_percent(-k / n, digits).lstrip("-") == as_percent(k / n, digits)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.5, 0, "3"),
        (-2.5, 0, "-3"),
        (-0.4, 0, "0"),
        (1.005, 2, "1.01"),
        (1e300, 0, f"{1e300:.0f}"),
        (float("nan"), 1, "nan"),
        (float("inf"), 1, "inf"),
    ],
)
def test_a_number_is_rounded(value: float, digits: int, text: str) -> None:
    assert fixed(value, digits) == text


def test_a_sign_is_always_there() -> None:
    assert [signed(value, 1) for value in (1.25, -0.25, 0.0, -0.01)] == ["+1.3", "-0.3", "+0.0", "+0.0"]


def test_a_long_text_keeps_its_ends_and_says_how_much_is_missing() -> None:
    text = "a" * 3000 + "bc"
    found = shortened(text, 3000)
    assert found.startswith("aaa") and found.endswith("bc")
    assert "[... 2 of 3,002 characters are not shown ...]" in found
    assert shortened(text[:3000], 3000) == text[:3000]
