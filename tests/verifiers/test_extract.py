"""Which text of a response is its answer. Most rules are cases in cases/extraction.jsonl."""

import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.extract import (
    MAX_ANSWER_CHARACTERS,
    MAX_PARTS,
    Fallback,
    answer_line,
    answer_tag,
    boxes_of_parts,
    extract_answer,
    final_part,
    last_box,
    last_number,
)
from verifiers.math.verifier import MathVerifier
from verifiers.registry import load_verifier
from verifiers.verdict import Outcome

MARKS = r"\boxed{ \boxed \fbox{ { } \{ \} \\ 42 </think> <think> x".split()
PIECES = st.lists(st.sampled_from([*MARKS, " or ", "\n"]), max_size=40).map("".join)


def test_the_method_says_how_the_answer_was_found() -> None:
    assert extract_answer("\\boxed{1}").method == "boxed"
    assert extract_answer("#### 1", fallbacks=["last_line", "hashes"]).method == "last_line"
    assert extract_answer("#### 1\nend", fallbacks=["hashes"]).method == "hashes"
    assert extract_answer("The answer is 1", fallbacks=["final_answer"]).method == "final_answer"


def test_a_missing_answer_has_a_reason() -> None:
    assert "no \\boxed{}" in extract_answer("42").reason
    assert "never closed" in extract_answer("\\boxed{42").reason
    assert "never finished thinking" in extract_answer("<think>\\boxed{42}").reason
    assert "empty" in extract_answer("\\boxed{}").reason


def test_a_box_past_the_limit_is_no_answer_and_no_reason_to_look_further_back() -> None:
    long = "9" * (MAX_ANSWER_CHARACTERS + 1)
    assert extract_answer(f"\\boxed{{1}} then a lot of text \\boxed{{{long}}}").answer is None
    assert extract_answer(f"\\boxed{{1}} then a lot of text \\boxed{{{'9' * 100_000}}}").answer is None


def test_boxes_of_one_breath_are_one_answer_with_candidates() -> None:
    assert extract_answer("\\boxed{1} or \\boxed{2}").candidates == ("1", "2")
    assert extract_answer("\\boxed{1}, so \\boxed{2}").candidates == ()
    assert extract_answer("\\boxed{1}. Then \\boxed{2}").answer == "2"


def test_an_enclosing_box_is_unwrapped_in_place() -> None:
    assert last_box("\\boxed{a + \\boxed{b} + c}") == "a + b + c"


def test_what_stands_after_the_last_thought_counts() -> None:
    assert final_part("a</think>b</think>c")[0] == "c"
    assert final_part("c", think="required")[0] is None
    assert final_part("<think>c", think="ignore")[0] == "<think>c"


@given(PIECES)
@settings(max_examples=300)
def test_extraction_never_raises_and_gives_an_answer_or_a_reason(response: str) -> None:
    found = extract_answer(response, fallbacks=["hashes", "last_line"])
    assert (found.answer is None) == bool(found.reason)
    assert found.answer is None or found.method


@given(
    st.text(alphabet="0123456789abcxyz+-^ \\", min_size=1, max_size=30).filter(lambda text: text.strip(" \\"))
)
@settings(max_examples=200)
def test_a_boxed_text_comes_out_as_it_went_in(answer: str) -> None:
    if answer.endswith("\\"):
        answer += "x"
    assert extract_answer(f"so \\boxed{{{answer}}}.").answer == answer.strip()


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
        "\\boxed{" * 20_000,
        "\\boxed{" * 20_000 + "1" + "}" * 20_000,
        "{" * 200_000 + "\\boxed{1}",
        "\\boxed" * 50_000,
        "answer is " * 50_000,
        ("\\boxed{1}" + " " * 59) * 5_000,
        "\\boxed{1}" + " or" * 100_000,
        "(a) \\boxed{1} " * 60_000,
        "(a) \\boxed{1}" + "(b) " * 200_000 + "\\boxed{2}",
        "\\boxed{1}" + " \n" * 400_000 + "\\boxed{2}",
        "x = \\boxed{1} and " * 50_000,
        "\\boxed{1}" + "*" * 800_000 + "\\boxed{2}",
    ],
)
def test_hostile_responses_are_read_in_linear_time(response: str) -> None:
    started = time.thread_time()
    extract_answer(response, fallbacks=["final_answer", "hashes", "last_line"])
    boxes_of_parts(response)
    # Milliseconds when measured; quadratic reading would take minutes.
    assert time.thread_time() - started < 5


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
