"""Answers marked by tags, by a line of their own, or only by being the last number."""

import time
from typing import get_args

import pytest

from verifiers.extract import Fallback, answer_line, answer_tag, extract_answer, last_number
from verifiers.registry import load_verifier
from verifiers.verdict import Outcome


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>34</answer>", "34"),
        ("<answer> 34\n</answer> and so on", "34"),
        ("<answer>33</answer>, no: <answer>**34**</answer>", "34"),
        ("<answer>34", None),
        ("<answer>33</answer> <answer>34", None),
        ("</answer>34<answer>", None),
        ("<answer></answer>", None),
    ],
)
def test_the_last_answer_tag_that_closes_is_the_answer(text: str, answer: str | None) -> None:
    assert answer_tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("We add.\nA: 34", "34"),
        ("Answer: 34.", "34"),
        ("**Answer:** 34", "34"),
        ("Q: 1+1?\nA: 2\nQ: 2+2?\nA: 4\n", "4"),
        ("A: 12\nB: 15\nC: 18", None),
        ("The plan A: 34", None),
        ("Answers: 34", None),
        ("A:", None),
    ],
)
def test_a_line_of_its_own_is_the_answer_and_an_option_is_not(text: str, answer: str | None) -> None:
    assert answer_line(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2 and then 34.", "34"),
        ("it costs $1,234.50", "1,234.50"),
        ("so -7", "-7"),
        ("3/4 of it", "3/4"),
        ("a share of 12%", "12%"),
        ("x2 is no number", None),
        ("nothing", None),
    ],
)
def test_the_last_number_has_its_sign_its_groups_and_its_percent_sign(text: str, answer: str | None) -> None:
    assert last_number(text) == answer


def test_none_of_them_is_looked_at_without_its_option() -> None:
    response = "A: 34\n<answer>34</answer>\n#### 34"
    assert extract_answer(response).answer is None
    for fallback in ("answer_tag", "answer_line", "hashes", "last_number"):
        found = extract_answer(response, fallbacks=[fallback])
        assert (found.answer, found.method) == ("34", fallback)


def test_a_box_outranks_every_mark_and_a_mark_in_the_thought_is_none() -> None:
    response = "<think><answer>1</answer></think> \\boxed{2}"
    assert extract_answer(response, fallbacks=get_args(Fallback)).answer == "2"
    assert extract_answer("<think><answer>1</answer></think> so", fallbacks=["answer_tag"]).answer is None


@pytest.mark.parametrize(
    "response", ["<answer>34</answer>", "We add.\nA: 34", "Answer: 34", "We add.\n#### 34"]
)
def test_a_verifier_of_text_takes_the_marked_answer_of_the_final_part(response: str) -> None:
    marks = ["answer_tag", "answer_line", "hashes"]
    marked = load_verifier("exact", {"fallbacks": marks})
    plain = load_verifier("exact", {})
    assert marked.verify(response, marked.parse_reference("34")).outcome is Outcome.CORRECT
    assert marked.verify("34", marked.parse_reference("34")).outcome is Outcome.CORRECT
    assert plain.verify(response, plain.parse_reference("34")).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "part", ["<answer>", "A: ", "\nA:\n", "1,", "1.", "-", "* ", "\n>#-* ", "9" * 500 + " "]
)
def test_no_text_makes_the_finders_slow(part: str) -> None:
    def cost(size: int) -> float:
        text = part * (size // len(part))
        started = time.thread_time()
        for finder in (answer_tag, answer_line, last_number):
            finder(text)
        return time.thread_time() - started

    cost(1000)
    # Twenty times the text: linear is 20 times the time, quadratic 400 times.
    assert cost(400_000) < 100 * cost(20_000) + 0.2
