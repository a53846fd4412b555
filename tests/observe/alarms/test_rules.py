"""Each alarm on a series that shows its fault, and on one that only looks like it."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.alarm_log import AlarmLog

from asyncrl.observe.alarms.learning import EmptySteps, TrainedNothing
from asyncrl.observe.alarms.rule import NO_CORRECT
from asyncrl.observe.alarms.watch import CLEAR_STEPS, rules_of
from asyncrl.readers.page.app import VIEWS
from asyncrl.recipe import Alarms
from asyncrl.run.metrics_file import Row

ABSENT = object()
"""The row lacks that column."""


def healthy(step: int, **columns: Any) -> Row:
    """Of a run that learns: a step of it, with some columns changed."""
    return {
        "step": step,
        "loss": -0.1,
        "grad_norm": 0.4,
        "learning_rate": 1e-4,
        "entropy": 0.4,
        "correct_mean": 0.3,
        "response_tokens_mean": 30.0,
        "cut_share": 0.05,
        "run_on_p95": 2e-5,
        "mismatch_kl": None,
        "continued_kl": 1e-6,
        "sequence_effective_share": 0.8,
        "token_effective_share": 0.97,
        "capped_share": 0.01,
        "clipped_share": 0.002,
        "trust_region_share": 0.01,
        "groups_zero_signal": 3,
        "no_signal_token_share": 0.1,
        "most_common_answer_share": 0.1,
        "outcomes_correct": 24,
        "outcomes_wrong": 50,
        "outcomes_no_answer": 6,
        "outcomes_fault": 0,
        "num_tokens": 2400.0,
        "nonfinite_tokens": 0.0,
        "controller_memory_gib": 0.2,
        "trainer_memory_gib": 1.5,
        "server_memory_gib": 1.2,
        **columns,
    }


def series(num_steps: int, **columns: Sequence[Any] | Any) -> list[Row]:
    """From step 1 on. A function of the step gives a column, anything else stays."""
    found = []
    for step in range(1, num_steps + 1):
        here = {name: value(step) if callable(value) else value for name, value in columns.items()}
        found.append(healthy(step, **{name: value for name, value in here.items() if value is not ABSENT}))
    return found


def rising(step: int) -> float:
    return min(0.85, 0.1 + 0.02 * step)


def alarms_of(rows: list[Row], **keys: Any) -> set[str]:
    return {name for name, _, is_on in AlarmLog(**keys).run(rows) if is_on}


def after(step: int, early: Any, late: Any) -> Any:
    return lambda now: late if now > step else early


def measured_every(num_steps: int, size: Any) -> Any:
    return lambda now: size(now) if now % num_steps == 0 else None


def saves(*steps: int) -> Any:
    """Seconds of checkpoints, written after those steps."""
    return lambda now: 0.4 if now in steps else ABSENT


def test_a_healthy_run_is_silent() -> None:
    assert alarms_of(series(80, correct_mean=rising)) == set()


def test_entropy_that_collapses_before_the_tasks_are_solved() -> None:
    fallen = series(40, entropy=lambda step: 1.2 * 0.8**step)
    log = AlarmLog()
    ((name, step, is_on),) = log.run(fallen)
    # 1.2 * 0.8^n, mean over 5 steps: below 0.02 at step 21.
    assert (name, step, is_on) == ("entropy_collapse", 21, True)
    assert log.rows[0]["text"] == "entropy fell from 0.645 nats in the first steps to 0.018 nats"
    assert "alarms.entropy_nats" in log.texts[0] and "limit 0.02" in log.texts[0]
    assert log.rows[0]["view"] == "#/run/curves"


def test_entropy_of_a_run_whose_held_out_tasks_are_solved_may_fall() -> None:
    rows: list[Row] = [{"step": 0, "greedy_accuracy": 0.97}]
    assert alarms_of(rows + series(40, entropy=lambda step: 1.2 * 0.8**step)) == set()


def test_few_effective_samples_are_told_before_an_asynchronous_run_collapses() -> None:
    """Log-weights of sequences spread as a random walk does; the reward falls once one sequence of a hundred
    carries a step."""

    def share(step: int) -> float:
        return math.exp(-0.1 * step)

    def is_over(step: int) -> bool:
        return share(step) < 0.01

    rows = series(
        60,
        sequence_effective_share=share,
        correct_mean=lambda step: 0.0 if is_over(step) else 0.3,
        grad_norm=lambda step: 30.0 if is_over(step) else 0.4,
        entropy=lambda step: 0.01 if is_over(step) else 0.4,
        capped_share=lambda step: 0.3 if is_over(step) else 0.01,
    )
    log = AlarmLog()
    begun = [(name, step) for name, step, is_on in log.run(rows) if is_on]
    collapse = next(step for step in range(1, 61) if is_over(step))
    # exp(-0.1 n), mean over 5 steps: 0.75 at first, below 0.3 at step 15.
    assert begun[0] == ("effective_samples", 15) and collapse == 47
    assert all(step >= collapse for _, step in begun[1:])
    assert "75% in the first steps" in log.rows[0]["text"] and "alarms.effective_share" in log.texts[0]
    assert alarms_of(rows[:46], effective_share=None) == set()


def test_few_effective_tokens_are_told_of_responses_of_any_length() -> None:
    falling = series(40, sequence_effective_share=0.02, token_effective_share=lambda step: 0.97**step)
    assert alarms_of(falling) == set()
    falling = series(60, sequence_effective_share=0.02, token_effective_share=lambda step: 0.97**step)
    assert alarms_of(falling) == {"effective_samples"}


def test_responses_that_grow_without_being_right_more_often() -> None:
    growing: Any = {"response_tokens_mean": lambda step: 10 * 1.1**step}
    assert alarms_of(series(30, **growing)) == {"length_explosion"}
    # R1-zero: longer responses that are right more often.
    assert alarms_of(series(30, **growing, correct_mean=rising)) == set()
    assert alarms_of(series(30, **growing), length_growth=None) == set()


def test_responses_that_are_cut_more_and_more() -> None:
    cut: Any = {"cut_share": lambda step: min(1.0, 0.03 * step)}
    assert alarms_of(series(30, **cut)) == {"length_explosion"}
    assert alarms_of(series(30, **cut), cut_share=None) == set()
    assert alarms_of(series(30, **cut, correct_mean=rising)) == set()
    # A base model that never ends a response is no news.
    assert alarms_of(series(30, cut_share=0.95)) == set()


def test_ends_that_become_less_certain_are_told_before_responses_run_on() -> None:
    drifting: Any = {"run_on_p95": lambda step: 2e-5 * 1.2**step}
    assert alarms_of(series(30, **drifting)) == {"run_on"}
    assert alarms_of(series(30, **drifting), run_on_p95=None) == set()
    # Nearly certain ends all the same, and a model that begins with unsure ones.
    assert alarms_of(series(30, run_on_p95=after(9, 2e-5, 9e-4))) == set()
    assert alarms_of(series(30, run_on_p95=after(9, 0.05, 0.2))) == set()
    # Ends that became sure and are given up again.
    assert alarms_of(series(60, run_on_p95=lambda step: 0.1 * 0.5 ** min(step, 60 - step))) == {"run_on"}


def test_responses_that_shrink_without_being_right_more_often() -> None:
    shrinking: Any = {"response_tokens_mean": lambda step: 100 * 0.9**step}
    assert alarms_of(series(30, **shrinking)) == {"length_collapse"}
    assert alarms_of(series(30, **shrinking, correct_mean=rising)) == set()
    assert alarms_of(series(30, **shrinking), length_shrink=None) == set()


def with_evaluations(rows: list[Row], accuracy: Any, *, every: int = 10, half: float = 0.05) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if row["step"] % every == 0:
            value = accuracy(row["step"])
            bounds = {"greedy_low": value - half, "greedy_high": value + half}
            found.append({"step": row["step"], "greedy_accuracy": value, **bounds})
    return found


def test_reward_that_rises_slowly_without_held_out_accuracy_is_told_later() -> None:
    rows = series(60, correct_mean=lambda step: 0.1 + 0.01 * step)
    log = AlarmLog()
    # 10 points in 10 steps are no alarm, 40 and 50 points since the first evaluation are, at steps 50 and 60.
    assert log.run([*with_evaluations(rows, lambda step: 0.3), healthy(61)]) == [
        ("reward_without_heldout", 61, True)
    ]
    assert log.rows[0]["limit"] == 0.3 and "50 points more" in log.rows[0]["text"]
    assert alarms_of(with_evaluations(rows, lambda step: 0.3 + 0.003 * step)) == set()


def test_reward_that_rises_fast_without_held_out_accuracy() -> None:
    fast = series(40, correct_mean=lambda step: 0.1 + 0.022 * step)
    log = AlarmLog()
    # Evaluations at 10, 20 and 30: the second pair is the second in a row, and steps hear of it.
    assert log.run(with_evaluations(fast, lambda step: 0.3)) == [("reward_without_heldout", 31, True)]
    assert "22 points more" in log.rows[0]["text"] and "from 30% to 30%" in log.rows[0]["text"]
    assert alarms_of(with_evaluations(fast, lambda step: 0.1 + 0.02 * step)) == set()
    # Held-out accuracy is near its end: it cannot rise with the reward.
    assert alarms_of(with_evaluations(fast, lambda step: 0.85)) == set()
    # Once is an accident.
    assert alarms_of(with_evaluations(fast, after(20, 0.3, 0.6))) == set()


def test_evaluations_closer_than_ten_steps_are_compared_with_earlier_ones() -> None:
    fast = series(40, correct_mean=lambda step: 0.1 + 0.022 * step)
    assert alarms_of(with_evaluations(fast, lambda step: 0.3, every=5)) == {"reward_without_heldout"}


def test_a_mismatch_that_is_large_or_grows() -> None:
    assert alarms_of(series(20, mismatch_kl=0.02)) == {"mismatch_kl"}
    assert alarms_of(series(20, mismatch_kl=after(10, 1e-4, 2e-3))) == {"mismatch_kl"}
    # bfloat16 stays at 3e-3; float32 may grow a thousandfold and be nothing.
    assert alarms_of(series(20, mismatch_kl=3e-3)) == set()
    assert alarms_of(series(20, mismatch_kl=after(10, 1e-9, 1e-6))) == set()


def test_a_mismatch_on_an_older_cache_counts_by_its_size_alone() -> None:
    assert alarms_of(series(20, continued_kl=0.021)) == {"mismatch_kl"}
    assert alarms_of(series(20, continued_kl=0.019)) == set()
    assert alarms_of(series(20, continued_kl=after(10, 1e-4, 2e-3))) == set()
    assert alarms_of(series(20, continued_kl=0.02, mismatch_kl=1e-9)) == set()


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"capped_share": 0.06}, "capped_share"),
        ({"clipped_share": 0.31}, "clipped_share"),
        ({"trust_region_share": 0.31}, "trust_region_share"),
        ({"groups_zero_signal": 9}, "dead_groups"),
        ({"no_signal_token_share": 0.95}, "dead_groups"),
        ({"outcomes_fault": 2}, "verifier_faults"),
        # All of them got a verdict in the end.
        ({"faults_retried": 2}, "verifier_faults"),
        ({"most_common_answer_share": after(10, 0.2, 0.6)}, "one_answer"),
        ({"nonfinite_tokens": 3.0}, "not_a_number"),
        ({"loss": after(10, -0.1, None)}, "not_a_number"),
        ({"grad_norm": after(10, 0.4, math.nan)}, "not_a_number"),
        ({"trainer_memory_gib": lambda step: 1.5 + 0.05 * step}, "memory_growth"),
        ({"server_memory_gib": after(30, 2.0, 3.2)}, "memory_growth"),
        ({"memory_limit_share": after(30, 0.8, 0.97)}, "memory_limit"),
        # Steps shorter than the pause between two measurements.
        ({"server_memory_gib": measured_every(3, after(30, 2.0, 3.2))}, "memory_growth"),
        # It grows on after the first checkpoint.
        ({"trainer_memory_gib": lambda n: 1.5 + 0.05 * n, "checkpoint_seconds": saves(20)}, "memory_growth"),
    ],
)
def test_a_share_above_its_limit(columns: dict[str, Any], name: str) -> None:
    assert alarms_of(series(60, **columns)) == {name}
    key = {
        "dead_groups": "dead_group_share",
        "verifier_faults": "fault_share",
        "one_answer": "answer_share",
        "not_a_number": "nonfinite_share",
        "memory_limit": "memory_limit_share",
    }.get(name, name)
    assert alarms_of(series(60, **columns), **{key: None}) == set()


@pytest.mark.parametrize(
    "columns",
    [
        # Nearly everything is right: there is one answer to each task.
        {"entropy": lambda step: 1.2 * 0.8**step, "correct_mean": 0.95},
        # It began with little.
        {"entropy": 0.015},
        {"entropy": None},
        # Responses so long that even mismatch spreads their products.
        {"sequence_effective_share": 0.05},
        # Staleness that settles.
        {"sequence_effective_share": lambda step: max(0.35, 1 - 0.05 * step)},
        {"sequence_effective_share": None, "token_effective_share": None},
        # Two experts, of which each token takes one or both.
        {"busiest_expert_share": 0.95},
        # It rises by less than half.
        {"busiest_expert_share": after(7, 0.6, 0.89)},
        # It becomes less.
        {"busiest_expert_share": after(7, 0.9, 0.6)},
        # It doubles, and is still one of many.
        {"busiest_expert_share": after(7, 0.2, 0.4)},
        # A single step.
        {"busiest_expert_share": lambda step: 0.9 if step == 30 else 0.3},
        {"capped_share": 0.049},
        {"clipped_share": None},
        # Solved.
        {"groups_zero_signal": 10, "correct_mean": 0.97},
        # Said by the alarm no_correct, which knows why.
        {"groups_zero_signal": 10, "correct_mean": 0.0},
        # Two faults in five small batches are more than the limit, and few.
        {
            "outcomes_fault": after(59, 0, 2),
            "outcomes_wrong": 1,
            "outcomes_no_answer": 0,
            "outcomes_correct": 1,
        },
        # Yes or no.
        {"most_common_answer_share": 0.6},
        # The critic warms up.
        {"grad_norm": None, "learning_rate": 0.0},
        # Caches fill.
        {"trainer_memory_gib": after(8, 1.0, 4.0)},
        {"controller_memory_gib": after(30, 0.1, 0.5)},
        {"memory_limit_share": 0.94, "memory_stall_share": 0.05},
        # One step says little.
        {"memory_stall_share": lambda step: 0.4 if step == 30 else 0.0},
        # What the first checkpoint is copied into stays.
        {"trainer_memory_gib": after(30, 3.6, 5.6), "checkpoint_seconds": saves(30)},
        {"trainer_memory_gib": after(14, 3.6, 7.0), "checkpoint_seconds": saves(14)},
    ],
)
def test_what_looks_like_it_and_is_none(columns: dict[str, Any]) -> None:
    assert alarms_of(series(60, **columns)) == set()


def test_waits_for_memory_are_said_before_how_much_is_in_use() -> None:
    rows = series(20, memory_limit_share=0.97, memory_stall_share=0.3)
    assert alarms_of(rows) == alarms_of(rows, memory_limit_share=None) == {"memory_limit"}
    log = AlarmLog()
    log.run(rows)
    assert log.rows[0]["text"].startswith("processes waited for memory in 30% of the time")
    assert log.rows[0]["key"] == "alarms.memory_limit_share, alarms.memory_stall_share"
    assert alarms_of(rows, memory_limit_share=None, memory_stall_share=None) == set()


@pytest.mark.parametrize("rows", [[], [{"step": 1}], [{"step": n} for n in range(1, 60)]])
def test_rows_without_columns_raise_nothing(rows: list[Row]) -> None:
    assert alarms_of(rows) == set()


def test_words_in_place_of_numbers_raise_nothing() -> None:
    assert alarms_of([{name: "x" for name in healthy(1)} | {"step": n} for n in range(1, 40)]) == set()


def test_the_first_steps_alone_are_no_trend() -> None:
    for num_steps in range(1, 5):
        rows = series(num_steps, entropy=lambda step: 10.0 ** (-step), response_tokens_mean=lambda s: 10.0**s)
        assert alarms_of(rows) == set()


def test_all_alarms_can_be_on_and_each_ends_ten_steps_after_its_cause() -> None:
    bad = after(20, 0.01, 0.2)
    rows = series(60, capped_share=lambda step: bad(step) if step <= 30 else 0.0)
    log = AlarmLog()
    # Means over 5 steps: 0.2 and four of 0.01 are 0.048, 0.2 twice 0.086; 0 thrice, and then 0.08; once 0.04.
    assert log.run(rows) == [("capped_share", 22, True), ("capped_share", 34 + CLEAR_STEPS - 1, False)]
    assert [row["is_first"] for row in log.rows] == [True, False]


def test_a_single_step_that_no_token_is_left_of() -> None:
    log = AlarmLog()
    rows = series(20, surviving_tokens=lambda step: 0.0 if step == 7 else 2000.0, left_out_share=0.1)
    assert log.run(rows) == [("left_out_tokens", 7, True), ("left_out_tokens", 17, False)]
    assert "step 7 trained no token: 2400 tokens were masked or rejected (" in log.rows[0]["text"]
    assert "version 7 has the weights of the version before it" in log.rows[0]["text"]
    assert alarms_of(rows, left_out_share=None) == set()


def empty(step: int, **columns: Any) -> Row:
    return {"step": step, "surviving_tokens": 0.0, "num_tokens": 0.0, **columns}


def test_a_step_without_sampled_tokens_says_what_agents_did_instead() -> None:
    log = AlarmLog()
    log.run([empty(1, causes="8 agents ended without a call of the model (the first: train:1)")])
    expected = "no token: the responses have no sampled token; 8 agents ended without a call of the model ("
    assert expected in log.rows[0]["text"]


def test_a_run_without_a_trained_token_in_a_window_of_steps_ends_with_the_cause() -> None:
    trained = EmptySteps(num_steps=100)
    for step in range(1, 5):
        trained.step(empty(step))
    # The critic's warm-up has no such column.
    trained.step({"step": 5})
    for step in range(6, 10):
        trained.step(empty(step, too_stale_tokens=10.0))
    with pytest.raises(TrainedNothing, match=r"steps 6 to 10: 50 tokens were too stale \(.*; 3 calls were"):
        trained.step(empty(10, too_stale_tokens=10.0, causes="3 calls were refused"))


def test_a_run_of_few_steps_fails_if_none_of_them_trained_a_token() -> None:
    rows = [empty(1), empty(2)]
    trained = EmptySteps(num_steps=2)
    trained.step(rows[0])
    advice = r"steps 1 to 2: .*set run_folder to start over, or raise trainer\.num_steps"
    with pytest.raises(TrainedNothing, match=advice):
        trained.step(rows[1])
    with pytest.raises(TrainedNothing, match=advice):
        EmptySteps(num_steps=2).restore(rows)
    resumed = EmptySteps(num_steps=3)
    resumed.restore([{"step": 1, "surviving_tokens": 7.0}, empty(2)])
    resumed.step(empty(3))


def test_most_tokens_are_left_out_of_the_loss() -> None:
    log = AlarmLog()
    columns = {"surviving_tokens": 900.0, "too_stale_tokens": 1100.0, "left_out_share": 0.74}
    ((name, step, is_on),) = log.run(series(12, **columns))
    assert (name, step, is_on) == ("left_out_tokens", 3, True)
    assert (
        "leaves out 74% of the tokens: in the last steps 3300 were too stale, 4500 masked"
        in (log.rows[0]["text"])
    )
    assert alarms_of(series(12, **columns), left_out_share=0.8) == set()
    log = AlarmLog()
    log.run(series(12, **columns, masked_cut_off_tokens=200.0))
    assert "3300 were too stale, 600 of responses that were cut off, 4500 masked" in log.rows[0]["text"]


def test_a_spike_that_sits_in_one_row_is_named() -> None:
    place = "row 2 of model.embed_tokens.weight, the token <pad>"
    spike = {"spike_share": 0.97, "spike_norm": 3381.0, "spike_times": 8452.0, "spike_row": place}
    columns = {name: after(7, ABSENT, value) for name, value in spike.items()}
    log = AlarmLog()
    assert log.run(series(8, **columns)) == [("gradient_spike", 8, True)]
    assert f"97% of its square is in {place}; limit 0.5 (alarms.spike_row_share)." in log.texts[0]
    assert alarms_of(series(8, **columns | {"spike_share": after(7, ABSENT, 0.4)})) == set()
    assert alarms_of(series(8, **columns), spike_row_share=None) == set()


def test_chosen_responses_that_become_unlikely_beside_rejected_ones() -> None:
    columns = {"dpo_chosen_reward": after(7, 0.02, -0.4), "dpo_rejected_reward": after(7, -0.3, -1.5)}
    log = AlarmLog()
    assert log.run(series(12, **columns)) == [("likelihood_displacement", 9, True)]
    assert "is -0.15, that of rejected ones -0.78; limit 0.1 (alarms.chosen_reward_loss)." in log.texts[0]
    assert alarms_of(series(12, **columns), chosen_reward_loss=0.5) == set()
    assert alarms_of(series(12, **columns | {"dpo_rejected_reward": 0.1})) == set()


def test_a_critic_that_knows_nothing_once_the_policy_leans_on_it() -> None:
    columns = {"explained_variance": -0.25, "learning_rate": lambda step: 0.0 if step <= 5 else 1e-5}
    log = AlarmLog()
    assert log.run(series(30, **columns)) == [("ignorant_critic", 25, True)]
    assert "last 20 steps the critic's mean explained variance is -0.25" in log.texts[0]
    assert alarms_of(series(30, **columns | {"explained_variance": 0.1})) == set()
    # Returns were constant in most steps: no step tells.
    rare = {"explained_variance": lambda step: -1.0 if step % 3 == 0 else math.nan}
    assert alarms_of(series(30, **columns | rare)) == set()


def test_a_critic_whose_clip_bites_in_most_steps() -> None:
    columns = {"critic_grad_norm": lambda step: 12.0 if step % 10 else 1.0, "learning_rate": 1e-5}
    log = AlarmLog(critic_clip=10.0)
    assert log.run(series(30, **columns)) == [("clipped_critic", 20, True)]
    assert "in 90% of the last 20 steps" in log.texts[0]
    assert "clip of 10, on average 10.9; limit 0.8 (alarms.clipped_critic_share)." in log.texts[0]
    assert alarms_of(series(30, **columns)) == set()


@pytest.mark.parametrize("model", ["policy", "critic"])
def test_optimizer_steps_that_are_skipped_one_after_the_other(model: str) -> None:
    prefix = "" if model == "policy" else "critic_"
    columns = {f"{prefix}skipped_steps": lambda step: float(step > 6), f"{prefix}loss_scale": 128.0}
    log = AlarmLog()
    assert log.run(series(9, **columns)) == [("skipped_steps", 9, True)]
    assert f"last 3 steps a gradient of the {model}" in log.texts[0] and "is now 128; limit 3" in log.texts[0]
    assert alarms_of(series(9, **columns), skipped_steps=4) == set()
    # As the scale is tried too large now and then.
    now_and_then = {"skipped_steps": lambda step: float(step % 3 > 0), "loss_scale": 128.0}
    assert alarms_of(series(60, **now_and_then)) == set()


def test_a_router_that_sends_most_tokens_to_one_expert() -> None:
    rising: Any = {"busiest_expert_share": after(7, 0.3, 0.9)}
    log = AlarmLog()
    # Means over 5 steps: four of 0.3 and 0.9 are 0.42, 0.9 twice 0.54.
    assert log.run(series(9, **rising)) == [("router_collapse", 9, True)]
    assert "gets 54% of the tokens, up from 30% in the first steps; limit 0.5" in log.texts[0]
    assert alarms_of(series(9, **rising), busiest_expert_share=0.6) == set()
    assert alarms_of(series(9, **rising), busiest_expert_share=None) == set()


def test_each_alarm_is_explained_and_points_to_a_view_of_the_page() -> None:
    rules = rules_of(Alarms(), groups_per_batch=8)
    page = (Path(__file__).parents[3] / "docs" / "alarms.md").read_text(encoding="utf-8")
    assert {rule.name for rule in rules} | {NO_CORRECT[0]} == set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert {f"{rule.view}.js" for rule in rules} | {f"{NO_CORRECT[2]}.js"} <= set(VIEWS)
