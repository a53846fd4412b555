"""Steps of search and verification, counted by a parser that gives every response back to the letter."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import InputError
from asyncrl.examples.countdown_pretrain import Game
from asyncrl.examples.search_report import (
    COMPARISONS,
    Comparison,
    Equation,
    Response,
    SearchSteps,
    Unread,
    by_group,
    count_steps,
    read_response,
    read_trained,
    split,
    table,
    total,
    write_response,
)
from asyncrl.journal.responses import TrainedResponse

GAME = Game((3, 5, 7), 22)
NUMBERS = st.integers(0, 99)
EXPRESSIONS = st.recursive(
    NUMBERS.map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map("".join), inner.map(lambda text: f"({text})")
    ),
    max_leaves=6,
)
EQUATIONS = st.builds(
    Equation,
    EXPRESSIONS,
    NUMBERS,
    st.none() | st.builds(Comparison, st.sampled_from(COMPARISONS), NUMBERS),
    st.lists(EXPRESSIONS, max_size=2).map(tuple),
)
RESPONSES = st.builds(Response, st.lists(EQUATIONS, max_size=5).map(tuple), st.none() | EXPRESSIONS)
PIECES = (
    "<answer>",
    "</answer>",
    " is ",
    " not ",
    ";",
    "=",
    " ",
    "3",
    "5",
    "22",
    "+",
    "*",
    "(",
    ")",
    "x",
    "²",
    "0",
)


@given(RESPONSES)
def test_what_the_grammar_writes_is_read_as_it_was(response: Response) -> None:
    assert read_response(write_response(response)) == response


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=40))
def test_any_text_is_read_and_given_back_to_the_letter(text: str) -> None:
    assert write_response(read_response(text)) == text


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_counts_of_any_text_are_possible(text: str) -> None:
    steps = count_steps(text, GAME)
    assert steps.equations >= steps.attempts >= max(steps.hits, steps.retries, steps.checks)
    assert steps.checks >= steps.true_checks and steps.equations >= steps.true_equations
    assert steps.responses == 1 >= steps.answers >= steps.tried_answers >= steps.stops_at_hit


@given(RESPONSES)
def test_counts_are_those_of_the_tree(response: Response) -> None:
    steps = count_steps(write_response(response), GAME)
    assert steps.equations == len(response.items)
    assert steps.answers == (response.answer is not None)
    assert steps.true_equations == sum(
        {eval(text) for text in (item.expression, *item.steps)} == {item.said}
        for item in response.items
        if isinstance(item, Equation)
    )


def test_a_search_is_counted_step_by_step() -> None:
    text = "3+5+7=8+7=15 not 22;3*5=15;5*7-3=32 not 22;7*3+5=26;3*5+7=15+7=22 is 22<answer>3*5+7</answer>"
    assert count_steps(text, GAME) == SearchSteps(
        responses=1,
        equations=5,
        true_equations=5,
        attempts=4,
        hits=1,
        retries=3,
        checks=3,
        true_checks=3,
        answers=1,
        tried_answers=1,
        stops_at_hit=1,
        passed_hits=0,
    )


def test_a_hit_that_is_passed_and_one_that_is_none_are_told_apart() -> None:
    passed = count_steps("3*5+7=22;7-5-3=22<answer>7-5-3</answer>", GAME)
    assert (passed.hits, passed.attempts, passed.true_equations, passed.retries) == (1, 2, 1, 0)
    # Both say the target; the last one wrongly, and the response stops there.
    assert (passed.passed_hits, passed.stops_at_hit) == (1, 1)


def test_an_equation_is_true_when_all_its_steps_are() -> None:
    steps = count_steps("3*5+7=15+7=22;3*5+7=14+7=22;3*5+7=15+7=21;3*5+7=22=22", GAME)
    assert (steps.equations, steps.true_equations, steps.attempts, steps.hits) == (4, 2, 4, 4)


@pytest.mark.parametrize(
    "said", ["3+5=8", "3+5+7+7=22", "3*5+7=22x", "3*5+7", "3*5+7=022", "3*5+22=37", "=22"]
)
def test_other_equations_and_other_texts_are_no_attempts(said: str) -> None:
    assert count_steps(said, GAME).attempts == 0


def test_a_comparison_with_another_number_or_a_false_one_is_no_true_check() -> None:
    steps = count_steps("3+5+7=15 is 22;3+5+7=15 not 7;3+5+7=22 not 22", GAME)
    assert (steps.attempts, steps.checks, steps.true_checks) == (3, 2, 0)


@pytest.mark.parametrize("text", ["3+5<answer>3+5", "<answer>3+5</answer>;3+5=8", "3+5</answer>"])
def test_an_answer_that_does_not_end_the_response_is_none(text: str) -> None:
    assert count_steps(text, GAME).answers == 0


def test_counts_add_up() -> None:
    one, two = (count_steps(text, GAME) for text in ("3+5+7=15;3*5*7=5", "3*5+7=22<answer>3</answer>"))
    assert total([one, two]) == SearchSteps(2, 3, 2, 3, 1, 1, 0, 0, 1, 0, 0, 0)
    assert isinstance(read_response("x").items[0], Unread)


def response(step: int, text: str, task: int = 0) -> TrainedResponse:
    return TrainedResponse(f"t{step}", f"train:{task}", step, "3 5 7 22:", text, "wrong", 0.0, None, "")


MISS, HIT = "3+5+7=15", "3+5+7=15 not 22;3*5+7=22 is 22<answer>3*5+7</answer>"


def test_steps_are_cut_into_ranges_of_equal_length() -> None:
    ranges = split([response(step, MISS) for step in (7, 1, 2, 3, 4, 5, 6)], 3)
    assert {name: [each.step for each in found] for name, found in ranges.items()} == {
        "1-3": [1, 2, 3],
        "4-6": [4, 5, 6],
        "7-7": [7],
    }


def test_counts_are_per_response_with_groups_as_the_unit() -> None:
    responses = [response(1, MISS), response(1, HIT), response(1, HIT, task=1), response(1, HIT, task=1)]
    assert list(map(len, by_group(responses))) == [2, 2]
    lines = dict(
        line.strip("| ").split(" | ", maxsplit=1) for line in table(split(responses, 1)).splitlines()[2:]
    )
    # Groups have 1.5 and 2 attempts per response: 1.96 * 0.3536 / sqrt(2).
    assert lines["reward"] == "0.000 ± 0.000"
    assert lines["attempts"] == "1.750 ± 0.490"
    assert lines["stops at hit"] == "0.750 ± 0.490"
    assert lines["true checks"] == "1.500 ± 0.980"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no journal"):
        read_trained(tmp_path / "journal.sqlite")
