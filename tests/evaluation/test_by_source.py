"""Figures of an evaluation for each source, against those of its tasks alone."""

from dataclasses import replace

from fakes.records import make_score, make_task

from asyncrl.evaluation.result import (
    GradedResponse,
    greedy_result,
    numbers_by_part,
    numbers_by_source,
    sampled_result,
)

SHORT, OTHER_SHORT, LONG = (replace(make_task(), task_id=name) for name in ("short:1", "short:2", "a_b:1"))


def response(reward: float | None, **turns: int) -> GradedResponse:
    return GradedResponse("", 4, (0,), make_score(reward), **turns)


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
