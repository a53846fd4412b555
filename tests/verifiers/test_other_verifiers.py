"""Exact text, numbers, patterns, choices, structure, JSON, length and their composition."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.format import soft_overlong
from verifiers.registry import build_verifier, check_options, load_verifier
from verifiers.verdict import Verdict, weighted_sum


def verdict(name: str, gold: Any, response: str, **options: Any) -> Verdict:
    verifier = load_verifier(name, options)
    return verifier.verify(response, verifier.parse_reference(gold))


def outcome(name: str, gold: Any, response: str, **options: Any) -> str:
    return verdict(name, gold, response, **options).outcome.value


def test_exact_compares_text_without_case_and_space_unless_told_otherwise() -> None:
    assert outcome("exact", "New York", "<think>hm</think> new  york\n") == "correct"
    assert outcome("exact", "New York", "New Yorks") == "wrong"
    assert outcome("exact", "New York", "new york", ignore_case=False) == "wrong"
    assert outcome("exact", "New York", "New  York", ignore_space=False) == "wrong"
    assert outcome("exact", "New York", "New York!", ignore_punctuation=True) == "correct"
    assert outcome("exact", ["yes", "yep"], "YEP") == "correct"
    assert outcome("exact", "a", "so \\boxed{A}", source="boxed") == "correct"
    assert outcome("exact", "a", "<think>a") == "no_answer"
    assert outcome("exact", "a", " \n") == "no_answer"


def test_numeric_accepts_what_lies_within_the_tolerance_and_nothing_else() -> None:
    assert outcome("numeric", 3.14159, "\\boxed{3.1416}", relative_tolerance=1e-4) == "correct"
    assert outcome("numeric", 3.14159, "\\boxed{3.142}", relative_tolerance=1e-4) == "wrong"
    # 0.1 away at an absolute tolerance of 0.1: the bound itself is inside, in exact arithmetic.
    assert outcome("numeric", "1", "\\boxed{1.1}", absolute_tolerance=0.1, relative_tolerance=0) == "correct"
    assert outcome("numeric", "1", "\\boxed{1.11}", absolute_tolerance=0.1, relative_tolerance=0) == "wrong"
    assert outcome("numeric", "0", "\\boxed{0.000001}") == "wrong"
    assert outcome("numeric", "1e-30", "\\boxed{2e-30}") == "wrong"
    assert outcome("numeric", "2 m", "\\boxed{200 cm}") == "correct"
    assert outcome("numeric", "2 m", "\\boxed{2 kg}") == "wrong"
    assert outcome("numeric", "1.41421356", "The answer is \\sqrt{2}.") == "correct"
    with pytest.raises(ValueError, match="absolute_tolerance.*finite"):
        load_verifier("numeric", {"absolute_tolerance": math.inf})
    assert outcome("numeric", "5", "\\boxed{x}") == "wrong"
    assert outcome("numeric", "5", "\\boxed{4, 5}") == "wrong"
    assert outcome("numeric", "5", "five") == "no_answer"
    for bad in ("x", "", None, True, "1, 2"):
        with pytest.raises(ValueError, match="expected a number"):
            load_verifier("numeric").parse_reference(bad)


def test_numeric_takes_a_number_and_no_task_to_compute_one() -> None:
    for answer in ("43 = 42", r"17\cdot2 + 8", "40 + 2", r"84 \div 2", "2x = 42", r"42^\circ = 43^\circ"):
        assert outcome("numeric", "42", f"\\boxed{{{answer}}}") == "wrong", answer
    for answer in ("x = 42", "42 = x", r"17\cdot2 + 8 = 42", r"\frac{84}{2}", r"4.2\cdot10^1", r"42^\circ"):
        assert outcome("numeric", "42", f"\\boxed{{{answer}}}") == "correct", answer
    assert outcome("numeric", r"17\cdot2 + 8", r"\boxed{2\cdot21}") == "correct"


def test_numeric_tells_degrees_from_radians_and_from_other_units() -> None:
    for gold in ("30 degrees", r"30^\circ"):
        assert outcome("numeric", gold, r"\boxed{30^\circ}") == "correct"
        assert outcome("numeric", gold, r"\boxed{\frac{\pi}{6}\text{ rad}}") == "correct"
        assert outcome("numeric", gold, r"\boxed{30\text{ rad}}") == "wrong"
        assert outcome("numeric", gold, r"\boxed{30\text{ cm}}") == "wrong"
    assert outcome("numeric", "0.5235987756 rad", r"\boxed{30^\circ}") == "correct"
    assert outcome("numeric", "5 cm", r"\boxed{5^\circ}") == "wrong"


def test_regex_must_match_the_whole_answer_unless_it_may_search() -> None:
    assert outcome("regex", r"\d{4}-\d\d", "2024-05") == "correct"
    assert outcome("regex", r"\d{4}-\d\d", "on 2024-05") == "wrong"
    assert outcome("regex", r"\d{4}-\d\d", "on 2024-05", match="search") == "correct"
    assert outcome("regex", "abc", "ABC") == "wrong"
    assert outcome("regex", "abc", "ABC", ignore_case=True) == "correct"
    assert outcome("regex", ".*", "<think>abc") == "no_answer"
    for bad in ("(", "", None, "a{99999999999}"):
        with pytest.raises(ValueError, match="regular expression"):
            load_verifier("regex").parse_reference(bad)


def test_choice_needs_exactly_the_letters_of_the_gold() -> None:
    assert outcome("choice", "B", "so \\boxed{B}") == "correct"
    assert outcome("choice", "B", "The answer is (B).") == "correct"
    assert outcome("choice", "B", "\\boxed{A}") == "wrong"
    assert outcome("choice", "B", "\\boxed{A, B}") == "wrong"
    assert outcome("choice", "A,C", "\\boxed{C and A}") == "correct"
    assert outcome("choice", ["A", "C"], "\\boxed{A}") == "wrong"
    assert outcome("choice", "B", "I like B") == "no_answer"
    with pytest.raises(ValueError, match="option 'letters'"):
        load_verifier("choice", {"letters": "AB"}).parse_reference("C")


GOOD = "<think>hm</think> so \\boxed{42}"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (GOOD, "correct"),
        ("hm</think> so \\boxed{42}", "correct"),
        ("so \\boxed{42}", "wrong"),
        ("<think>hm</think><think>hm</think> \\boxed{42}", "wrong"),
        ("Sure! <think>hm</think> \\boxed{42}", "wrong"),
        ("</think><think> \\boxed{42}", "wrong"),
        ("<think>hm</think> 42", "no_answer"),
        ("<think>hm</think> \\boxed{}", "no_answer"),
        ("<think>hm</think> \\boxed{41} \\boxed{42}", "wrong"),
        ("<think>\\boxed{42}</think>", "no_answer"),
    ],
)
def test_format_wants_one_finished_thought_and_one_box(response: str, expected: str) -> None:
    assert outcome("format", None, response) == expected


def test_format_takes_blocks_of_its_own() -> None:
    blocks = {"tags": ["reasoning", "answer"], "require_box": False}
    assert outcome("format", None, "<reasoning>a</reasoning>\n<answer>b</answer>", **blocks) == "correct"
    assert outcome("format", None, "<answer>b</answer><reasoning>a</reasoning>", **blocks) == "wrong"
    assert outcome("format", None, "<reasoning>a</reasoning>", **blocks) == "wrong"
    assert outcome("format", None, "hm</think> \\boxed{1}", opened_by_prompt=False) == "wrong"
    assert outcome("format", None, "<think>hm</think> \\boxed{1}", min_think_characters=3) == "wrong"


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def test_json_must_satisfy_the_schema_and_equal_the_value_when_there_is_one() -> None:
    assert outcome("json_schema", SCHEMA, '{"age": 3}') == "correct"
    assert outcome("json_schema", SCHEMA, 'Here:\n```json\n{"age": 3}\n```') == "correct"
    assert outcome("json_schema", SCHEMA, '{"age": "3"}') == "wrong"
    assert outcome("json_schema", SCHEMA, '{"age": 3') == "wrong"
    assert outcome("json_schema", SCHEMA, '{"age": 3, "age": 4}') == "wrong"
    assert outcome("json_schema", {}, "NaN") == "wrong"
    assert outcome("json_schema", SCHEMA, "<think>hm") == "no_answer"
    assert outcome("json_schema", SCHEMA, '{"age": 3}', fenced="required") == "no_answer"
    with_value = json.dumps({"schema": SCHEMA, "value": {"age": 3}})
    assert outcome("json_schema", with_value, '{"age": 3}') == "correct"
    assert outcome("json_schema", with_value, '{"age": 4}') == "wrong"
    assert outcome("json_schema", {"schema": {}, "value": 1}, "true") == "wrong"
    assert outcome("json_schema", {"schema": {}, "value": 1}, "1.0") == "correct"
    assert outcome("json_schema", {"schema": {}, "value": 1}, "1.0", strict_numbers=True) == "wrong"


def test_json_numbers_are_exact_multiples_as_written() -> None:
    for divisor, value, expected in (
        (0.01, "0.07", "correct"),
        (0.01, "19.99", "correct"),
        (0.01, "0.075", "wrong"),
        (1e-300, "1e300", "correct"),
        (0.5, "7" * 400, "correct"),
        (2.5, "7" * 400, "wrong"),
    ):
        assert outcome("json_schema", {"multipleOf": divisor}, value) == expected, (divisor, value)
        assert outcome("json_schema", {"items": {"multipleOf": divisor}}, f"[{value}]") == expected


def test_a_dollar_sign_in_a_json_pattern_is_the_end_of_the_text() -> None:
    for pattern, text, expected in (
        (r"^\d+$", "42", "correct"),
        (r"^\d+$", "42\n", "wrong"),
        (r"^(\d+$|x)", "42\n", "wrong"),
        (r"[$]\$$", "$$", "correct"),
        (r"[$]\$$", "$$\n", "wrong"),
        (r"^\\$", "\\", "correct"),
    ):
        assert outcome("json_schema", {"pattern": pattern}, json.dumps(text)) == expected, (pattern, text)
        by_name = {"patternProperties": {pattern: True}, "additionalProperties": False}
        assert outcome("json_schema", by_name, json.dumps({text: 1})) == expected, (pattern, text)
    named = {"properties": {"pattern": {"pattern": "a$"}}, "const": {"pattern": "a$"}}
    assert outcome("json_schema", named, '{"pattern": "a$"}') == "wrong"
    assert outcome("json_schema", {"const": {"pattern": "a$"}}, '{"pattern": "a$"}') == "correct"


def test_a_schema_that_is_broken_or_reaches_outside_is_refused() -> None:
    for bad, sentence in (
        ({"type": "nonsense"}, "not a valid JSON schema"),
        ({"pattern": "("}, "not a valid JSON schema"),
        ("{", "is not JSON"),
        (None, "expected a JSON schema"),
        ({"$ref": "https://example.com/schema"}, "another document"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_verifier("json_schema").parse_reference(bad)


def test_soft_overlong_falls_linearly_before_the_limit() -> None:
    # DAPO, eq. 13, with a limit of 100 and a buffer of 20.
    values = [soft_overlong(length, max_length=100, buffer=20) for length in (0, 80, 90, 100, 101)]
    assert values == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert soft_overlong(100, max_length=100, buffer=0) == 0.0


def test_length_shapes_and_never_scores() -> None:
    found = verdict("length", None, "x" * 90, max_length=100, buffer=20, factor=2.0)
    assert (found.score, found.shaping) == (1.0, -1.0)
    assert outcome("length", None, "one two three", max_length=2, unit="words") == "wrong"


PARTS = [
    {"name": "math", "weight": 3},
    {"name": "format", "weight": 1},
    {"name": "length", "options": {"max_length": 100, "buffer": 100}, "weight": 0, "shaping": True},
]


def test_weighted_means_the_scores_and_keeps_shaping_apart() -> None:
    found = verdict("weighted", "42", GOOD, parts=PARTS)
    assert (found.outcome.value, found.score) == ("correct", 1.0)
    # Length 31 of 100 with a buffer of 100.
    assert found.shaping == pytest.approx(-len(GOOD) / 100)
    half = verdict("weighted", "42", "\\boxed{42}", parts=PARTS)
    assert (half.outcome.value, half.score) == ("wrong", 0.75)
    assert verdict("weighted", "43", GOOD, parts=PARTS).score == 0.25


def test_weighted_names_the_score_of_each_part() -> None:
    strict = {"name": "exact", "options": {"ignore_case": False}}
    parts = [strict, "exact", {"name": "format", "shaping": True}]
    found = verdict("weighted", "a", "A", parts=parts)
    assert (found.score, found.scores) == (0.5, {"exact": 0.0, "exact_2": 1.0, "format": 0.0})


@pytest.fixture
def judges(tmp_path: Path) -> Path:
    (tmp_path / "judges.py").write_text(
        "from verifiers.verdict import Outcome, Verdict\n"
        "class Judge:\n"
        "    def __init__(self, *, turns: list, first: int): self.turns, self.first = turns, first\n"
        "    def parse_reference(self, raw): return raw\n"
        "    def verify(self, response, reference):\n"
        "        spans = [(self.first, self.first + 2, 0.1)]\n"
        "        return Verdict(Outcome.CORRECT, 1.0, turn_rewards=self.turns, spans=spans)\n"
    )
    return tmp_path


def test_weighted_passes_on_what_its_parts_give_to_turns_and_spans(judges: Path) -> None:
    def part(turns: list[float], first: int) -> dict[str, Any]:
        return {"name": "./judges.py:Judge", "options": {"turns": turns, "first": first}}

    def both(turns: list[float]) -> Verdict:
        options = {"parts": [part([0.1, 1.0], 0), part(turns, 3), "format"]}
        checked = check_options("weighted", options, folder=judges)
        built = build_verifier("weighted", checked, folder=judges)
        return built.verify("abcdef", built.parse_reference("x"))

    found = both([0.2, -1.0])
    assert (found.turn_rewards, found.spans) == ((0.3, 0.0), ((0, 2, 0.1), (3, 5, 0.1)))
    with pytest.raises(ValueError, match=r"rewards to \[1, 2\] turns"):
        both([0.2])


def test_equal_shares_of_a_weighted_score_are_equal_floats() -> None:
    def score_of(response: str) -> float | None:
        parts = [
            {"name": "regex", "weight": weight, "field": letter, "options": {"match": "search"}}
            for letter, weight in (("a", 0.7), ("b", 0.2), ("c", 0.1), ("d", 0.3))
        ]
        return verdict("weighted", {letter: letter for letter in "abcd"}, response, parts=parts).score

    # In floats 0.7 + 0.2 + 0.1 is 0.9999999999999999, and 0.2 + 0.1 is above 0.3.
    assert score_of("bc") == score_of("d")
    assert score_of("abcd") == 1.0


def test_a_required_part_that_fails_fails_all() -> None:
    parts = [{"name": "math"}, {"name": "format", "required": True, "weight": 0}]
    assert verdict("weighted", "42", "\\boxed{42}", parts=parts).score == 0.0
    assert verdict("weighted", "42", GOOD, parts=parts).score == 1.0


def test_parts_may_take_their_own_field_of_the_gold() -> None:
    parts = [
        {"name": "math", "field": "answer"},
        {"name": "regex", "field": "pattern", "options": {"match": "search"}},
    ]
    gold = {"answer": "42", "pattern": "because"}
    assert outcome("weighted", gold, "because \\boxed{42}", parts=parts) == "correct"
    assert outcome("weighted", gold, "\\boxed{42}", parts=parts) == "wrong"
    with pytest.raises(ValueError, match="'pattern'"):
        load_verifier("weighted", {"parts": parts}).parse_reference({"answer": "42"})


def test_half_a_verdict_is_none() -> None:
    parts = ["math", {"name": "remote", "options": {"url": "http://127.0.0.1:9/", "attempts": 1}}]
    found = verdict("weighted", "42", GOOD, parts=parts)
    assert (found.outcome.value, found.score) == ("fault", None)


def test_parts_that_make_no_sense_are_refused() -> None:
    for parts, sentence in (
        ([], "a list of parts"),
        ([{"weight": 1}], "'name'"),
        ([{"name": "math", "wight": 1}], "Did you mean 'weight'"),
        ([{"name": "math", "weight": -1}], "expected a number"),
        ([{"name": "format", "shaping": True}], "no part that scores"),
        (["maths"], "Did you mean 'math'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_verifier("weighted", {"parts": parts})


HUNDREDTHS = st.integers(-1000, 1000).map(lambda number: number / 100)


@pytest.mark.parametrize(
    ("pairs", "divisor", "total"),
    [
        ([(1.0, 0.7), (1.0, 0.2), (1.0, 0.1)], 1.0, 1.0),
        ([(1.0, 0.8), (-1.0, 0.1)], 1.0, 0.7),
        ([(0.1, 1.0), (0.2, 1.0), (0.3, 0.0)], 0.6, 0.5),
        ([(3, 1), (1, 0)], 4, 0.75),
        ([], 1.0, 0.0),
        ([(1e308, 100.0)], 1.0, math.inf),
        ([(1.0, math.inf), (1.0, 0.5)], 1.0, math.inf),
        ([(1.0, math.nan), (1.0, 0.5)], 1.0, math.nan),
    ],
)
def test_numbers_are_taken_as_they_are_written(
    pairs: list[tuple[float, float]], divisor: float, total: float
) -> None:
    assert weighted_sum(pairs, divisor=divisor) == pytest.approx(total, rel=0, abs=0, nan_ok=True)


@given(st.lists(st.tuples(HUNDREDTHS, HUNDREDTHS), max_size=8), st.randoms(use_true_random=False))
def test_equal_parts_in_any_order_have_one_sum(
    pairs: list[tuple[float, float]], chance: random.Random
) -> None:
    wanted = sum((Fraction(str(a)) * Fraction(str(b)) for a, b in pairs), Fraction())
    chance.shuffle(pairs)
    assert weighted_sum(pairs) == float(wanted)
