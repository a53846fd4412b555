"""What graded responses amount to, against values worked out by hand."""

import pytest
from fakes.records import make_score

from asyncrl.evaluation.result import (
    EvaluationFailed,
    GradedResponse,
    Result,
    chance_scores,
    greedy_result,
    sampled_result,
)


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
