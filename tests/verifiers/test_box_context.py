r"""What stands around a box. Most rules are cases in cases/surroundings.jsonl."""

import time

import pytest

from verifiers.extract import extract_answer, last_box


def test_a_sign_and_a_base_outside_the_box_are_read_with_it() -> None:
    assert extract_answer(r"$x = -\boxed{42}$").answer == "-42"
    assert extract_answer(r"-\boxed{x+1}").answer == r"-\left(x+1\right)"
    assert extract_answer(r"\boxed{101}_2").answer == "101_{2}"


def test_a_dash_and_a_bullet_are_no_sign() -> None:
    for response in (r"Answer - \boxed{42}", "- $\\boxed{42}$", "So\n- \\boxed{42}", r"is—\boxed{42}"):
        assert extract_answer(response).answer == "42", response


def test_a_part_of_a_formula_is_no_answer_and_the_reason_says_so() -> None:
    assert "part of a formula" in extract_answer(r"$2\cdot\boxed{21}$").reason
    assert extract_answer(r"$2\cdot\boxed{21} = 42$").answer == "21"


def test_a_denied_or_hidden_box_leaves_the_one_before_it() -> None:
    for hidden in (r"not \boxed{42}", r"\phantom{\boxed{42}}", "\n% \\boxed{42}", r"<!-- \boxed{42} -->"):
        assert extract_answer(f"It is \\boxed{{41}}, {hidden}").answer == "41", hidden
        assert "denied" in extract_answer(f"It is {hidden}").reason
        assert last_box("It is \\boxed{41}, not \\boxed{42}") == "41"


def test_more_hidden_places_than_an_answer_needs_hide_all() -> None:
    assert extract_answer(r"\phantom{x}" * 30 + r"\boxed{42}").answer == "42"
    assert extract_answer(r"\phantom{x}" * 50 + r"\phantom{\boxed{42}}").answer is None


@pytest.mark.parametrize(
    "response",
    [
        "\\phantom{" * 20_000 + "\\boxed{1}",
        "<!--" * 50_000 + "\\boxed{1}",
        "~~" * 100_000 + "\\boxed{1}",
        "a %" * 60_000 + "\\boxed{1}",
        " " * 100_000 + "%" + " " * 100_000 + "\\boxed{1}",
        "not " * 50_000 + "\\boxed{1}",
        "-" * 100_000 + "\\boxed{1}" + "-" * 100_000,
        "\\boxed{1} is not " * 20_000,
        "\\color{white}" * 20_000 + "\\boxed{1}",
    ],
)
def test_hostile_surroundings_are_read_in_linear_time(response: str) -> None:
    started = time.thread_time()
    extract_answer(response)
    # Milliseconds when measured; quadratic reading would take minutes.
    assert time.thread_time() - started < 5
