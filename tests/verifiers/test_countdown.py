"""Countdown: an equation is right when it uses each number once and equals the target, and only then."""

# The lists of answers read best unbroken.
# ruff: noqa: E501

import itertools

import pytest

from verifiers.registry import load_verifier
from verifiers.verdict import Verdict

GOLD = {"target": 24, "numbers": [1, 2, 3, 4]}


def verdict(answer: str, gold: object = GOLD, **options: object) -> Verdict:
    """On a response that gives `answer` in its tags."""
    return respond(f"<think>2 * 3 * 4</think>\n<answer>{answer}</answer>", gold, **options)


def respond(response: str, gold: object = GOLD, **options: object) -> Verdict:
    verifier = load_verifier("countdown", options)
    return verifier.verify(response, verifier.parse_reference(gold))


def outcome(answer: str, gold: object = GOLD) -> str:
    return verdict(answer, gold).outcome.value


@pytest.mark.parametrize(
    "answer",
    ["1 * 2 * 3 * 4", "(1+2+3)*4", "4*(3*(2/1))", "4/(1/(2*3))", " ( 1 + 3 ) * ( 2 + 4 ) ", "-(-2*3*4)/1",
     "+1*2*3*4"],
)  # fmt: skip
def test_every_number_once_and_the_target_is_correct(answer: str) -> None:
    assert outcome(answer) == "correct"


def test_fractions_are_exact() -> None:
    # 8 / (3 - 8/3) is the only way, and 23.999999999999989 in floating point.
    assert outcome("8/(3-8/3)", {"target": 24, "numbers": [3, 3, 8, 8]}) == "correct"
    # 1/3 + 1/3 + 1/3 - 1 is 0 only in exact arithmetic of fractions; a near miss is a miss.
    near = {"target": 1, "numbers": [999999, 1000000]}
    assert outcome("999999/1000000", near) == "wrong"
    assert outcome("1000000/999999", near) == "wrong"


@pytest.mark.parametrize(
    "answer",
    [
        *("2*3*4", "1*2*3*4*1", "4*4+4+4", "24", "12*(3-4+3)", "1+2+3+4"),
        # Digits glued together, spelled otherwise or hidden in other numbers.
        *("12+3*4", "1 2 * 3 + 4", "1_2*3*4", "1.0*2*3*4", "01*2*3*4", "0x1*2*3*4", "1e0*2*3*4", "１*2*3*4", "²*1*3*4"),
        # Operations beyond the four.
        *("4**(3-2)*1", "(4**2+3*1)", "4//1*2*3", "4%1+2*3", "1^2*3*4", "4!*(3-2*1)", "1*2*3*4 if 1 else 2", "2(3)(4)1"),
        # Equations, lists, code and comments.
        *("1*2*3*4=24", "24=1*2*3*4", "1*2*3*4, 24", "1*2*3*4 # 24", "1*2*3*4;", "lambda:24", "1*2*3*__import__('os')"),
        *("1*2*3*4 or 1+2+3+4", "\\boxed{1*2*3*4}", "$1*2*3*4$", "*1*2*3*4*", "1*2*3*4\x00", "1*2*3*4\n<answer>"),
        # Broken ones, and divisions that have no value.
        *("", " ", "()", "(1*2*3*4", "1*2*3*4)", "1*2*3*", "*", "1*(2*3)4", "4/(3-2-1)", "1/(2+4-3*2)"),
    ],
)  # fmt: skip
def test_nothing_else_is(answer: str) -> None:
    assert outcome(answer) != "correct"


def test_numbers_of_one_kind_are_counted() -> None:
    gold = {"target": 4, "numbers": [2, 2]}
    assert outcome("2+2", gold) == outcome("2*2", gold) == "correct"
    assert outcome("2+2-2+2", gold) == outcome("2", gold) == "wrong"


def test_a_search_of_all_equations_finds_just_those_that_python_finds() -> None:
    numbers, target = [3, 5, 7], 22
    found = 0
    for order in itertools.permutations(numbers):
        for one, two in itertools.product("+-*/", repeat=2):
            a, b, c = order
            for text in (f"({a}{one}{b}){two}{c}", f"{a}{one}({b}{two}{c})", f"{a}{one}{b}{two}{c}"):
                expected = abs(eval(text) - target) < 1e-9
                found += expected
                assert (outcome(text, {"target": target, "numbers": numbers}) == "correct") is expected, text
    assert found > 0


def test_the_last_closed_answer_counts_and_a_thought_does_not() -> None:
    right, bad = "<answer>1*2*3*4</answer>", "<answer>1+2+3+4</answer>"
    assert respond(f"{bad} no: {right}").outcome.value == "correct"
    assert respond(f"{right} no: {bad}").outcome.value == "wrong"
    assert respond(f"<think>{right}</think> done").outcome.value == "no_answer"
    assert respond(f"<think>{right}").outcome.value == "no_answer"
    # The prompt prefilled <think>, and the model never closes it, as TinyZero's early ones.
    assert respond(f"so {right}").outcome.value == "correct"
    assert respond(f"{right} or <answer>1*2*3*4").outcome.value == "no_answer"
    assert respond("<answer>1*2*3*4").outcome.value == "no_answer"
    assert respond("1*2*3*4").outcome.value == "no_answer"


def test_a_wrong_answer_in_its_tags_earns_the_format_reward_as_shaping_only() -> None:
    for answer in ("1+2+3+4", "(1 + 2) / 3", "nonsense"):
        given = verdict(answer, format_reward=0.1)
        assert (given.outcome.value, given.score, given.shaping) == ("wrong", 0.0, 0.1)
    assert verdict("1*2*3*4", format_reward=0.1).shaping == 0.0
    assert respond("no tags", format_reward=0.1).shaping == 0.0
    assert verdict("1+2+3+4").shaping == 0.0


def test_long_and_deep_answers_are_wrong_at_once() -> None:
    assert outcome("(" * 149 + "1" + ")" * 149, {"target": 1, "numbers": [1]}) == "correct"
    assert outcome("(" * 100_000 + "1" + ")" * 100_000, {"target": 1, "numbers": [1]}) == "wrong"
    assert outcome("-" * 298 + "1", {"target": 1, "numbers": [1]}) == "correct"
    assert outcome("9" * 250, {"target": 9, "numbers": [9]}) == "wrong"


@pytest.mark.parametrize(
    "gold",
    [
        *(None, 24, "24", [1, 2], {}, {"target": 24}, {"target": 24, "numbers": []}),
        *({"target": 24, "numbers": numbers} for numbers in ([1.0, 2], ["1"], list(range(17)))),
        *({"target": target, "numbers": [1]} for target in (True, -1, 10**18)),
    ],
)
def test_a_gold_that_asks_for_nothing_is_refused(gold: object) -> None:
    with pytest.raises(ValueError, match="gold"):
        load_verifier("countdown").parse_reference(gold)
