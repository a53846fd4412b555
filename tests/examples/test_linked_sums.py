"""Sums as linked lists: what is right, what the base model has read, and what is held out."""

import json
from pathlib import Path
from random import Random

import pytest

from asyncrl.examples.linked_sums import (
    END,
    LinkedSum,
    LinkedSumsOptions,
    build_tokenizer,
    draw_corpus,
    draw_heldout,
    draw_sum,
    draw_train,
    prepare,
    row_of,
    work_sum,
    write_sum,
)
from verifiers.exact import ExactVerifier

OPTIONS = LinkedSumsOptions(num_examples=300, train_per_size=20, heldout_per_size=10)
EXAMPLE = LinkedSum("cbd", ((4, 7), (3, 5), (8, 7)))
"""834 + 757."""


def solve(prompt: str) -> str:
    """The answer, by following the names of a prompt."""
    text, _, name = prompt.partition("=")
    columns = {text[at]: text[at + 1 : at + 4] for at in range(0, len(text), 4)}
    answer, carry = "", 0
    while name != END:
        first, second, following = columns[name]
        carry, digit = divmod(int(first) + int(second) + carry, 10)
        answer, name = f"{answer}{name}{digit}", following
    return answer + END + ("1" if carry else "")


def is_right(answer: str, response: str) -> bool:
    verifier = ExactVerifier()
    return verifier.verify(response, verifier.parse_reference(answer)).reward == 1.0


def test_a_prompt_has_the_columns_in_random_order_and_the_name_of_the_first() -> None:
    prompts = {write_sum(EXAMPLE, Random(seed)) for seed in range(50)}
    assert len(prompts) == 6 and "c47bb35dd87.=c" in prompts and "d87.b35dc47b=c" in prompts


def test_a_working_follows_the_names_and_carries() -> None:
    assert work_sum(EXAMPLE, Random(0), noise=0.0) == ("c11b09d15.", "c1b9d5.1")


def test_the_answer_is_the_sum_of_the_two_numbers() -> None:
    random = Random(0)
    for size in (1, 3, 12):
        problem = draw_sum(size, random)
        _, answer = work_sum(problem, random, noise=0.0)
        digits = answer.partition(END)[0][1::2][::-1]
        assert int(answer.partition(END)[2] + digits) == sum(problem.terms)
        assert answer == solve(write_sum(problem, random))


def test_a_slip_makes_the_answer_wrong_and_the_text_stays_consistent() -> None:
    _, right = work_sum(EXAMPLE, Random(0), noise=0.0)
    for seed in range(20):
        working, answer = work_sum(EXAMPLE, Random(seed), noise=1.0)
        assert answer != right
        assert answer[1:6:2] == working[2:9:3], "units of the working"


def test_a_right_answer_passes_after_any_working_and_wrong_ones_fail() -> None:
    answer = str(row_of(EXAMPLE, Random(0))["answer"])
    assert is_right(answer, "<think>c11b09d15.</think>c1b9d5.1")
    assert is_right(answer, "<think>not read</think>c1b9d5.1") and is_right(answer, "c1b9d5.1")
    for response in ("c1b9d5.", "c1b9d5", "c1b8d5.1", "b9c1d5.1", "c1b9.", "", "<think>c11b09d15.c1b9d5.1"):
        assert not is_right(answer, response), response


def test_the_corpus_has_every_size_up_to_its_largest_and_none_above() -> None:
    for largest in (3, 5):
        options = OPTIONS.model_copy(update={"corpus_columns": largest})
        examples = list(draw_corpus(options, without=set()))
        sizes = {len(example.prompt.partition("=")[0]) // 4 for example in examples}
        assert sizes == set(range(1, largest + 1))
        for example in examples:
            assert example.response.partition("</think>")[2] == solve(example.prompt)


def test_no_problem_is_twice_in_the_rows_and_no_held_out_one_is_trained_on_or_in_the_corpus() -> None:
    by_size = draw_heldout(OPTIONS)
    heldout = [problem.identity for problems in by_size.values() for problem in problems]
    train = [problem.identity for problem in draw_train(OPTIONS, without=set(heldout))]
    assert list(by_size) == list(range(2, 11)) and {len(found) for found in train} == set(range(3, 11))
    assert len(set(heldout)) == len(heldout) == 90 and len(set(train)) == len(train) == 160
    assert not set(heldout) & set(train)
    without = {((3, 4),), ((0, 9),)}
    options = OPTIONS.model_copy(update={"corpus_columns": 2, "num_examples": 2000})
    examples = list(draw_corpus(options, without=without))
    ones = {tuple(sorted(example.terms)) for example in examples if example.prompt.count("=") and len(example.prompt) == 6}
    assert (2, 4) in ones and not ones & {(3, 4), (0, 9)}


def test_other_names_and_swapped_digits_are_the_same_problem() -> None:
    assert LinkedSum("xyz", ((7, 4), (3, 5), (7, 8))).identity == EXAMPLE.identity
    assert LinkedSum("cbd", ((3, 5), (4, 7), (8, 7))).identity != EXAMPLE.identity


def test_the_tokenizer_gives_every_text_back() -> None:
    tokenizer = build_tokenizer()
    for example in draw_corpus(OPTIONS, without=set()):
        ids = tokenizer.encode(example.prompt + example.response).ids
        assert tokenizer.decode(ids) == example.prompt + example.response


def test_prepare_writes_rows_by_size_that_verify(tmp_path: Path) -> None:
    options = {"num_examples": 8, "examples_per_batch": 4, "train_per_size": 3, "heldout_per_size": 2}
    prepare(tmp_path, lambda stage, done, total: None, most_columns=5, **options)
    train, heldout = rows_of(tmp_path / "train.jsonl"), rows_of(tmp_path / "heldout.jsonl")
    assert [row["size"] for row in train] == [3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert [row["size"] for row in heldout] == [2, 3, 4, 5, 2, 3, 4, 5]
    assert all(row["answer"] == solve(str(row["prompt"])) for row in train + heldout)
    by_size = [rows_of(tmp_path / "heldout" / f"{size}.jsonl") for size in (2, 3, 4, 5)]
    assert [row for turn in zip(*by_size, strict=True) for row in turn] == heldout


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("options", [{"corpus_columns": 1}, {"most_columns": 21}])
def test_sizes_without_a_meaning_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    from asyncrl.errors import InputError

    with pytest.raises(InputError, match=next(iter(options))):
        prepare(tmp_path, lambda stage, done, total: None, **options)
