"""Sums with letters: what is right, what the base model has read, and what is held out."""

import json
from pathlib import Path
from random import Random

import pytest

from asyncrl.errors import InputError
from asyncrl.examples.lettered_sums import (
    LETTERS,
    LetteredSum,
    LetteredSumsOptions,
    build_tokenizer,
    draw_corpus,
    draw_heldout,
    draw_sum,
    draw_train,
    pad,
    prepare,
    row_of,
    work_sum,
    write_sum,
)
from verifiers.exact import ExactVerifier

OPTIONS = LetteredSumsOptions(
    num_examples=300,
    corpus_columns=3,
    most_columns=10,
    padding=0.25,
    train_per_size=20,
    heldout_per_size=10,
)
EXAMPLE = LetteredSum(2, ((8, 0), (3, 5), (4, 7)))
"""438 + 750."""


def number_of(answer: str) -> int:
    """The number that an answer spells, after checking that its letters fall one by one."""
    assert answer[::2] in LETTERS[::-1]
    return int(answer[1::2])


def solve(prompt: str) -> str:
    """The answer, by adding the two numbers of a prompt."""
    written = prompt.removesuffix("=")
    total, lowest = int(written[1::3]) + int(written[2::3]), LETTERS.index(written[-3])
    digits = str(total).zfill(len(written) // 3)
    letters = LETTERS[lowest : lowest + len(digits)][::-1]
    return "".join(letter + digit for letter, digit in zip(letters, digits, strict=True))


def is_right(answer: str, response: str) -> bool:
    verifier = ExactVerifier()
    return verifier.verify(response, verifier.parse_reference(answer)).score == 1.0


def test_a_sum_is_written_from_the_left_and_worked_from_the_right_with_carries() -> None:
    assert write_sum(EXAMPLE) == "e47d35c80="
    assert work_sum(EXAMPLE) == ("c08d08e11", "f1e1d8c8")


def test_the_answer_is_the_sum_of_the_two_numbers() -> None:
    random = Random(0)
    for size in (1, 3, 12, len(LETTERS) - 1):
        for _ in range(20):
            problem = draw_sum(size, random)
            _, answer = work_sum(problem)
            assert number_of(answer) == sum(problem.terms)
            assert answer == solve(write_sum(problem))


def test_a_right_answer_passes_after_any_working_and_wrong_ones_fail() -> None:
    answer = str(row_of(EXAMPLE)["answer"])
    assert is_right(answer, "<think>c08d08e11</think>f1e1d8c8")
    assert is_right(answer, "<think>not read</think>f1e1d8c8") and is_right(answer, "f1e1d8c8")
    padded = ("g0f1e1d8c8", "f1e1d8c8b0")
    for response in (*padded, "e1d8c8", "f1e1d8", "1188", "", "<think>c08d08e11f1e1d8c8"):
        assert not is_right(answer, response), response


def test_padding_adds_zeros_at_both_ends_and_leaves_the_number() -> None:
    random, found = Random(0), set[tuple[int, int]]()
    for _ in range(500):
        padded = pad(EXAMPLE, OPTIONS, random)
        before = EXAMPLE.start - padded.start
        behind = len(padded.columns) - before - 3
        assert padded.columns == ((0, 0),) * before + EXAMPLE.columns + ((0, 0),) * behind
        assert number_of(work_sum(padded)[1]) == 1188 * 10**before
        found.add((before, behind))
    assert found == {(before, behind) for before in range(3) for behind in range(3)}


def test_padding_stops_where_the_letters_end() -> None:
    always = OPTIONS.model_copy(update={"padding": 1.0})
    assert pad(LetteredSum(1, ((1, 2),)), always, Random(0)).start == 0
    highest = len(LETTERS) - 2
    padded = pad(LetteredSum(highest, ((9, 9),)), always, Random(0))
    assert (padded.start, len(padded.columns)) == (highest - 2, 3)


def test_the_corpus_has_every_size_up_to_its_largest_and_none_above() -> None:
    for largest in (3, 5):
        options = OPTIONS.model_copy(update={"corpus_columns": largest})
        examples = list(draw_corpus(options, without=set()))
        assert {len(example.prompt) // 3 for example in examples} == set(range(1, largest + 1))


def test_the_share_of_exact_answers_in_the_corpus_is_what_the_padding_leaves() -> None:
    options = OPTIONS.model_copy(update={"num_examples": 4000})
    # After a last carry one column of zeros behind is worked as the carry's own, and the answer is exact.
    examples = [
        example
        for example in draw_corpus(options, without=set())
        if len(solve(example.prompt)) // 2 == len(example.prompt) // 3
    ]
    right = [is_right(solve(example.prompt), example.response) for example in examples]
    assert sum(right) / len(right) == pytest.approx(0.75**2, abs=0.04)
    exact = [*draw_corpus(options.model_copy(update={"padding": 0.0}), without=set())]
    assert all(example.response.partition("</think>")[2] == solve(example.prompt) for example in exact)


def test_no_problem_is_twice_in_the_rows_and_no_held_out_one_is_trained_on_or_in_the_corpus() -> None:
    by_size = draw_heldout(OPTIONS)
    heldout = [problem.identity for problems in by_size.values() for problem in problems]
    train = [problem.identity for problem in draw_train(OPTIONS, without=set(heldout))]
    assert list(by_size) == list(range(2, 11)) and {len(found) for found in train} == set(range(3, 11))
    assert len(set(heldout)) == len(heldout) == 90 and len(set(train)) == len(train) == 160
    assert not set(heldout) & set(train)
    without = {((3, 4),), ((0, 9),)}
    options = OPTIONS.model_copy(update={"corpus_columns": 2, "num_examples": 2000})
    examples = draw_corpus(options, without=without)
    ones = {tuple(sorted(example.terms)) for example in examples if len(example.prompt) == len("a12=")}
    assert (2, 4) in ones and not ones & {(3, 4), (0, 9)}


def test_other_letters_and_swapped_digits_are_the_same_problem() -> None:
    assert LetteredSum(0, ((0, 8), (3, 5), (7, 4))).identity == EXAMPLE.identity
    assert LetteredSum(2, ((3, 5), (8, 0), (4, 7))).identity != EXAMPLE.identity


def test_the_tokenizer_gives_every_text_back() -> None:
    tokenizer = build_tokenizer()
    for example in draw_corpus(OPTIONS, without=set()):
        ids = tokenizer.encode(example.prompt + example.response).ids
        assert tokenizer.decode(ids) == example.prompt + example.response


def test_prepare_writes_rows_by_size_with_right_answers(tmp_path: Path) -> None:
    options = {"num_examples": 8, "examples_per_batch": 4, "train_per_size": 3, "heldout_per_size": 2}
    sizes = {"corpus_columns": 3, "most_columns": 5}
    prepare(tmp_path, lambda stage, done, total: None, **sizes, **options)
    train, heldout = rows_of(tmp_path / "train.jsonl"), rows_of(tmp_path / "heldout.jsonl")
    assert [row["size"] for row in train] == [3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert [row["size"] for row in heldout] == [2, 3, 4, 5, 2, 3, 4, 5]
    assert all(row["answer"] == solve(str(row["prompt"])) for row in train + heldout)
    by_size = [rows_of(tmp_path / "heldout" / f"{size}.jsonl") for size in (2, 3, 4, 5)]
    assert [row for turn in zip(*by_size, strict=True) for row in turn] == heldout


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("options", [{"corpus_columns": 1}, {"most_columns": 20}])
def test_sizes_without_a_meaning_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        prepare(tmp_path, lambda stage, done, total: None, **options)
