"""Numbers of graded responses, against values worked out by hand; by source too, and as tallies of
samples."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.records import make_score, make_task

from asyncrl.evaluation.result import (
    EvaluationFailed,
    GradedResponse,
    Result,
    chance_scores,
    greedy_result,
    numbers_by_part,
    numbers_by_source,
    sampled_result,
    tallies_of,
)
from asyncrl.observe.metrics.sample_curves import Tally
from asyncrl.recipe import Verifying
from asyncrl.records import Score, VerifierSpec
from asyncrl.rollout.grade import Grader
from asyncrl.tasks.verifier_cache import VerifierCache


def response(
    reward: float | None, *, tokens: int = 4, version: int = 0, is_cut: bool = False, **turns: int
) -> GradedResponse:
    return GradedResponse("", tokens, (version,), make_score(reward), is_cut, **turns)


def test_a_fault_is_counted_and_is_neither_right_nor_wrong() -> None:
    found = greedy_result([[response(1.0)], [response(0.0)], [response(None)]])
    assert (found["greedy_accuracy"], found["num_tasks"], found["num_faults"]) == (0.5, 3, 1)
    assert chance_scores([[response(1.0)], [response(0.0)], [response(None)]], 1) == [1.0, 0.0, None]


def test_lengths_cut_offs_and_versions_are_those_of_all_responses() -> None:
    found = greedy_result(
        [[response(1.0, tokens=2, version=3)], [response(None, tokens=8, version=5, is_cut=True)]]
    )
    assert (found["response_tokens_mean"], found["cut_share"]) == (5.0, 0.5)
    assert (found["version_min"], found["version_max"]) == (3, 5)


def test_avg_and_pass_at_k_are_means_over_tasks() -> None:
    # Shares 1/2 and 0; a draw of both samples holds a correct one in the first task alone.
    groups = [[response(1.0), response(0.0)], [response(0.0), response(0.0)]]
    found = sampled_result(groups, 2)
    assert (found["k"], found["avg_at_k"], found["pass_at_k"]) == (2, 0.25, 0.5)
    assert (chance_scores(groups, 1), chance_scores(groups, 2)) == ([0.5, 0.0], [1.0, 0.0])


def test_a_task_with_a_fault_has_no_pass_at_k_but_counts_for_avg_at_k() -> None:
    groups = [[response(1.0), response(None)], [response(0.0), response(0.0)]]
    assert sampled_result(groups, 2)["avg_at_k"] == 0.5
    assert (chance_scores(groups, 1), chance_scores(groups, 2)) == ([1.0, 0.0], [None, 0.0])
    with pytest.raises(EvaluationFailed, match="none of 1 tasks got 2 verdicts"):
        sampled_result(groups[:1], 2)


def test_a_row_has_the_greedy_lengths_and_the_faults_of_both() -> None:
    greedy = greedy_result([[response(1.0, tokens=3)], [response(None, tokens=3)]])
    sampled = sampled_result([[response(1.0), response(1.0)], [response(None), response(1.0)]], 2)
    row = Result(greedy, sampled, {"greedy": [1.0, None]}).row()
    assert (row["greedy_accuracy"], row["avg_at_k"], row["k"]) == (1.0, 1.0, 2)
    assert (row["response_tokens_mean"], row["num_faults"], row["greedy_scores"]) == (3.0, 2, [1.0, None])


def test_turns_and_the_use_of_tools_are_told_only_where_responses_have_turns() -> None:
    played = [[response(1.0, num_turns=3, num_calls=2)], [response(None, num_turns=1)]]
    found = greedy_result(played)
    assert (found["turns_mean"], found["tool_use_share"]) == (2.0, 0.5)
    single = greedy_result([[response(1.0)]])
    assert not any("turns" in name or "tool" in name for name in single)


def test_a_row_tells_the_use_of_tools_in_samples_apart_from_that_in_most_likely_answers() -> None:
    calls = [[response(1.0, num_turns=2, num_calls=1)], [response(1.0, num_turns=1)]]
    samples = [[response(1.0, num_turns=1)] * 2, [response(1.0, num_turns=1)] * 2]
    row = Result(greedy_result(calls), sampled_result(samples, 2), {}).numbers()
    assert (row["tool_use_share"], row["sampled_tool_use_share"]) == (0.5, 0.0)
    # Wilson's intervals of 1 of 2 and of 0 of 2 tasks
    assert (row["tool_use_low"], row["tool_use_high"]) == (
        pytest.approx(0.0945, abs=1e-4),
        pytest.approx(0.9055, abs=1e-4),
    )
    assert (row["sampled_tool_use_low"], row["sampled_tool_use_high"]) == (
        0.0,
        pytest.approx(0.6576, abs=1e-4),
    )


SHORT, OTHER_SHORT, LONG = (replace(make_task(), task_id=name) for name in ("short:1", "short:2", "a_b:1"))


def test_each_source_has_the_figures_that_its_tasks_have_alone() -> None:
    answers = [
        [response(1.0, num_turns=1)],
        [response(0.0, num_turns=2, num_calls=1)],
        [response(0.0, num_turns=1)],
    ]
    samples = [
        [response(1.0, num_turns=1), response(0.0, num_turns=1)],
        [response(1.0, num_turns=2, num_calls=1), response(1.0, num_turns=2, num_calls=1)],
        [response(0.0, num_turns=1), response(1.0, num_turns=1)],
    ]
    found = numbers_by_source((SHORT, LONG, OTHER_SHORT), answers, samples, 2)
    greedy, drawn = greedy_result([answers[0], answers[2]]), sampled_result([samples[0], samples[2]], 2)
    for name in ("greedy_accuracy", "greedy_low", "greedy_high", "tool_use_share", "tool_use_high"):
        assert found[f"{name}_by_source_short"] == greedy[name]  # type: ignore[literal-required]
    for name in ("avg_at_k", "avg_low", "avg_high", "sampled_tool_use_share", "sampled_tool_use_low"):
        assert found[f"{name}_by_source_short"] == drawn[name]  # type: ignore[literal-required]
    assert (found["greedy_accuracy_by_source_a_b"], found["avg_at_k_by_source_a_b"]) == (0.0, 1.0)
    assert (found["tool_use_share_by_source_a_b"], found["sampled_tool_use_share_by_source_short"]) == (1, 0)


def test_tasks_of_one_source_have_no_figures_of_their_own() -> None:
    assert numbers_by_source((SHORT, OTHER_SHORT), [[response(1.0)], [response(0.0)]], [], 0) == {}


def test_without_turns_no_source_has_a_use_of_tools() -> None:
    found = numbers_by_source((SHORT, LONG), [[response(1.0)], [response(0.0)]], [], 0)
    assert {name.partition("_by_source_")[0] for name in found} == {
        *("greedy_accuracy", "greedy_low", "greedy_high")
    }


def test_a_source_without_a_verdict_is_left_out() -> None:
    found = numbers_by_source((SHORT, LONG), [[response(1.0)], [response(None)]], [], 0)
    assert {name.rpartition("_by_source_")[2] for name in found} == {"short"}


def test_named_scores_have_their_means_over_the_answers_that_have_them() -> None:
    def judged(**scores: float) -> GradedResponse:
        return replace(response(1.0), score=replace(make_score(1.0), scores=scores))

    answers = [[judged(proposer=1.0, checker=0.5)], [judged(proposer=0.0)]]
    assert numbers_by_part(answers, [[judged(checker=0.0), response(None)]]) == {
        "greedy_score_by_part_proposer": 0.5,
        "greedy_score_by_part_checker": 0.5,
        "sampled_score_by_part_checker": 0.0,
    }


def sampled(correctness: float | None, extracted: str | None, outcome: str = "") -> GradedResponse:
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
        *(sampled(0.0, "1/2"), sampled(0.0, r"\frac{1}{2}"), sampled(0.0, "0.5"), sampled(0.0, "0.25")),
        *(sampled(1.0, "2"), sampled(1.0, "2.0")),
        *(sampled(0.0, None, "no_answer"), sampled(None, None)),
    )
    assert found == Tally(7, 2, ((3, 0), (2, 2), (1, 0)))


async def test_texts_letters_and_numbers_are_compared_by_their_verifiers() -> None:
    wrong = [sampled(0.0, text) for text in ("Paris", "paris ", "Rome")]
    assert (await tally("exact", *wrong)).answers == ((2, 0), (1, 0))
    assert (await tally("exact", *wrong, source="boxed", think="required")).answers == ((2, 0), (1, 0))
    letters = [sampled(0.0, text) for text in ("B", "(B)", "C")]
    assert (await tally("choice", *letters)).answers == ((2, 0), (1, 0))
    numbers = [sampled(0.0, text) for text in ("2", "2.0", "two and more", "3")]
    assert (await tally("numeric", *numbers)).answers == ((2, 0), (1, 0), (1, 0))


async def test_answers_of_other_verifiers_are_compared_by_their_text() -> None:
    samples = [sampled(1.0, "3 + 4"), sampled(1.0, "4 + 3"), sampled(0.0, "3  + 4 "), sampled(0.0, " ")]
    assert await tally("countdown", *samples) == Tally(4, 2, ((2, 1), (1, 1)))


async def test_a_right_sample_whose_answer_is_not_told_leaves_no_answers_to_count() -> None:
    assert await tally("math", sampled(1.0, None), sampled(0.0, "3")) == Tally(2, 1, None)


async def test_scores_are_kept_where_one_lies_between_wrong_and_right() -> None:
    found = await tally("countdown", sampled(0.5, "a"), sampled(1.0, "b"), sampled(None, None))
    assert (found.num_samples, found.num_correct, found.scores) == (2, 1, (0.5, 1.0))
