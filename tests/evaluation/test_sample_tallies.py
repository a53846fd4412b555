"""Tallies of samples: answers are compared as their verifier compares them with a gold."""

import dataclasses
from pathlib import Path

from fakes.records import make_task

from asyncrl.evaluation.result import GradedResponse, tallies_of
from asyncrl.observe.metrics.sample_curves import Tally
from asyncrl.recipe import Verifying
from asyncrl.records import Score, VerifierSpec
from asyncrl.rollout.grade import Grader
from asyncrl.tasks.verifier_cache import VerifierCache


def response(correctness: float | None, extracted: str | None, outcome: str = "") -> GradedResponse:
    named = outcome or ("fault" if correctness is None else "correct" if correctness == 1.0 else "wrong")
    return GradedResponse("", 3, (0,), Score(named, correctness, correctness, extracted, "", 0.0))


async def tally(name: str, *samples: GradedResponse, **options: str) -> Tally:
    task = dataclasses.replace(make_task(), verifier=VerifierSpec(name, options))
    async with Grader(Verifying(), VerifierCache(Path()), max_fault_retries=0) as grader:
        (found,) = await tallies_of([task], [samples], grader)
    return found


async def test_mathematical_answers_that_are_equal_are_one_answer() -> None:
    found = await tally(
        "math",
        *(response(0.0, "1/2"), response(0.0, r"\frac{1}{2}"), response(0.0, "0.5"), response(0.0, "0.25")),
        *(response(1.0, "2"), response(1.0, "2.0")),
        *(response(0.0, None, "no_answer"), response(None, None)),
    )
    assert found == Tally(7, 2, ((3, 0), (2, 2), (1, 0)))


async def test_texts_letters_and_numbers_are_compared_by_their_verifiers() -> None:
    wrong = [response(0.0, text) for text in ("Paris", "paris ", "Rome")]
    assert (await tally("exact", *wrong)).answers == ((2, 0), (1, 0))
    assert (await tally("exact", *wrong, source="boxed", think="required")).answers == ((2, 0), (1, 0))
    letters = [response(0.0, text) for text in ("B", "(B)", "C")]
    assert (await tally("choice", *letters)).answers == ((2, 0), (1, 0))
    numbers = [response(0.0, text) for text in ("2", "2.0", "two and more", "3")]
    assert (await tally("numeric", *numbers)).answers == ((2, 0), (1, 0), (1, 0))


async def test_answers_of_other_verifiers_are_compared_by_their_text() -> None:
    samples = [response(1.0, "3 + 4"), response(1.0, "4 + 3"), response(0.0, "3  + 4 "), response(0.0, " ")]
    assert await tally("countdown", *samples) == Tally(4, 2, ((2, 1), (1, 1)))


async def test_a_right_sample_whose_answer_is_not_told_leaves_no_answers_to_count() -> None:
    assert await tally("math", response(1.0, None), response(0.0, "3")) == Tally(2, 1, None)


async def test_scores_are_kept_where_one_lies_between_wrong_and_right() -> None:
    found = await tally("countdown", response(0.5, "a"), response(1.0, "b"), response(None, None))
    assert (found.num_samples, found.num_correct, found.scores) == (2, 1, (0.5, 1.0))
