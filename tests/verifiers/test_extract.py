"""Which text of a response is its answer. Most rules are cases in cases/extraction.jsonl."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.extract import MAX_ANSWER_CHARACTERS, extract_answer, final_part, last_box

PIECES = st.lists(
    st.sampled_from(
        [
            "\\boxed{",
            "\\boxed",
            "\\fbox{",
            "{",
            "}",
            "\\{",
            "\\}",
            "\\\\",
            "42",
            " or ",
            "\n",
            "</think>",
            "<think>",
            "x",
        ]
    ),
    max_size=40,
).map("".join)


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


def test_hostile_responses_are_read_in_linear_time() -> None:
    started = time.thread_time()
    for response in (
        "\\boxed{" * 20_000,
        "\\boxed{" * 20_000 + "1" + "}" * 20_000,
        "{" * 200_000 + "\\boxed{1}",
        "\\boxed" * 50_000,
        "answer is " * 50_000,
        ("\\boxed{1}" + " " * 59) * 5_000,
        "\\boxed{1}" + " or" * 100_000,
    ):
        extract_answer(response, fallbacks=["final_answer", "hashes", "last_line"])
    # 0.3 s when measured; quadratic reading would take minutes.
    assert time.thread_time() - started < 10


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
