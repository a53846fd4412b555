"""The boxes of a response that are its parts, one box to each."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.math.verifier import MathVerifier
from verifiers.parts import MAX_PARTS, boxes_of_parts
from verifiers.verdict import Outcome

MATH = MathVerifier()
LABELS = {
    "letters": ["a", "b", "c", "d", "e"],
    "numerals": ["i", "ii", "iii", "iv", "v"],
    "digits": ["1", "2", "3", "4", "5"],
}
STYLES = st.sampled_from(
    ["({}) We get ${}$.\n\n", "**({})** So ${}$.\n\n", "{}) Thus {}\n", "Part {}: ${}$. "]
)
VALUES = st.lists(st.integers(2, 99), min_size=2, max_size=5, unique=True)


def is_correct(gold: str, response: str) -> bool:
    return MATH.verify(response, MATH.parse_reference(gold)).outcome is Outcome.CORRECT


def parts(labels: list[str], values: list[int], style: str) -> str:
    rows = zip(labels, values, strict=False)
    return "".join(style.format(label, f"\\boxed{{{value}}}") for label, value in rows)


@given(VALUES, st.sampled_from(sorted(LABELS)), STYLES)
@settings(max_examples=100)
def test_each_part_of_a_list_has_its_box_in_order(values: list[int], kind: str, style: str) -> None:
    labels = LABELS[kind]
    gold, response = ", ".join(map(str, values)), parts(labels, values, style)
    assert is_correct(gold, response)
    assert is_correct(gold, f"First \\boxed{{7}}.\n\n{response}")
    assert not is_correct(gold, parts(labels, values[::-1], style))
    assert not is_correct(gold, parts(labels, values[:-1], style))
    assert not is_correct(gold, parts([*labels, "f"], [*values, 100], style))
    assert not is_correct(gold, parts(labels[1:] + labels[:1], values, style))
    assert not is_correct(gold, f"{response}\n\nOr else \\boxed{{100}}.")


@given(VALUES, st.sampled_from(sorted(LABELS)), STYLES)
@settings(max_examples=60)
def test_boxes_by_the_dozen_gain_nothing_on_one_value(values: list[int], kind: str, style: str) -> None:
    response = parts(LABELS[kind], values, style)
    accepted = [value for value in range(2, 100) if is_correct(str(value), response)]
    assert accepted == values[-1:]


def test_a_run_has_names_where_they_stand_before_the_boxes() -> None:
    assert boxes_of_parts("$x = \\boxed{2}$ and $y = \\boxed{5}$") == ("x = 2", "y = 5")
    assert boxes_of_parts("(a) $x = \\boxed{2}$. (b) \\boxed{5}") == ("x = 2", "5")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(a) \\boxed{3}",
        "(a) \\boxed{3} (b) \\boxed{5",
        "(a) \\boxed{3 (b) \\boxed{5}}",
        "(a) \\boxed{3} (b) \\phantom{\\boxed{5}}",
        "(a) \\boxed{3} (b) not \\boxed{5}",
        "(a) \\boxed{3} (a) \\boxed{5}",
        "x = \\boxed{3}. y = \\boxed{5}",
        "".join(f"({at}) \\boxed{{{at}}} " for at in range(1, MAX_PARTS + 2)),
    ],
)
def test_what_is_no_run_has_no_parts(text: str) -> None:
    assert boxes_of_parts(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "(a) \\boxed{1} " * 60_000,
        "(a) \\boxed{1}" + "(b) " * 200_000 + "\\boxed{2}",
        "\\boxed{" * 100_000,
        "\\boxed{1}" + " \n" * 400_000 + "\\boxed{2}",
        "x = \\boxed{1} and " * 50_000,
        "\\boxed{1}" + "*" * 800_000 + "\\boxed{2}",
    ],
)
def test_a_hostile_text_costs_time_in_its_length(text: str) -> None:
    started = time.thread_time()
    boxes_of_parts(text)
    assert time.thread_time() - started < 2.0
