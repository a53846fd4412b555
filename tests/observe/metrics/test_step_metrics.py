"""The numbers of a step, and the row they make."""

import math
from dataclasses import replace

import pytest
from fakes.notebook import Notebook
from fakes.records import correctness_differs, make_score, make_task

from asyncrl.observe.metrics.batch_columns import batch_metrics, group_metrics
from asyncrl.observe.metrics.step_metrics import Reading, StepReport, rollout_metrics
from asyncrl.observe.metrics.turn_metrics import source_metrics
from asyncrl.records import Batch, Finish, GradientSpike, Observed, Score, ScoredSequence, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.wire.messages import TakeRequest


class FakeMeters:
    """Reads what it was given, in turn."""

    def __init__(self, readings: list[Reading]) -> None:
        self._readings = list(readings)

    def read(self) -> Reading:
        return self._readings.pop(0)


class FakeGrader:
    num_retried = 3

    def pool_metrics(self) -> dict[str, float]:
        return {"verifier_killed_total": 2.0}


def test_speed_and_idleness_are_differences_of_two_readings() -> None:
    before = Reading(10.0, 1000, 100, 3.0, 2, 20.0, 100.0, 0.5, 0.9, retractions=3)
    after = Reading(14.0, 5000, 1100, 9.0, 2, 60.0, 420.0, 0.25, 0.75, retractions=7)
    # 4 s, 4000 tokens; two servers were busy 6 of 8 server-seconds
    assert rollout_metrics(before, after) == {
        "step_seconds": 4.0,
        "rollout_tokens_per_second": 1000.0,
        # 1000 of 4000 tokens were of groups without a signal
        "no_signal_token_share": 0.25,
        "rollout_idle_share": pytest.approx(0.25),
        # 40 request-seconds in 8 server-seconds; 320 / 40 as each of them saw it
        "requests_per_server": pytest.approx(5.0),
        "requests_together": pytest.approx(8.0),
        "cache_held_share": 0.25,
        "cache_expected_share": 0.75,
        "retractions": 4,
    }


def test_a_batch_is_described_by_its_rewards_and_lengths() -> None:
    sequences = [
        ScoredSequence(str(n), [1], [5] * n, [-1.0] * n, [0] * n, [False] * n, 0.0, float(n % 2))
        for n in (1, 2, 3)
    ]
    metrics = batch_metrics(Batch(0, 1.0, sequences))
    assert metrics["reward_mean"] == pytest.approx(2 / 3)
    assert (metrics["response_tokens_mean"], metrics["response_tokens_max"]) == (2.0, 3)


def test_branches_that_are_judged_each_have_the_mean_of_their_rewards() -> None:
    rewards = {"00000000-00": 0.5, "00000000-00.1": 0.0, "00000000-00.2": 0.0, "00000000-00.3": 0.0}
    sequences = [
        ScoredSequence(name, [1], [5], [-1.0], [0], [False], 0.0, reward) for name, reward in rewards.items()
    ]
    other = ScoredSequence("00000000-01", [1], [5], [-1.0], [0], [False], 0.0, 0.375)
    # 0.5 / 4, beside the reward of a trajectory without branches.
    assert batch_metrics(Batch(0, 1.0, sequences))["reward_mean"] == 0.125
    assert batch_metrics(Batch(0, 1.0, [*sequences, other]))["reward_mean"] == 0.25


def test_each_row_counts_once_in_accuracy_however_many_samples_its_group_has() -> None:
    def group(number: int, *correct: float | None) -> Group:
        own = Group(
            number, make_task(number), 0, [Trajectory(f"{number}-{i}", (1,)) for i in range(len(correct))]
        )
        own.scores = {f"{number}-{i}": make_score(each) for i, each in enumerate(correct)}
        return own

    # A pilot of 2 right ones, a whole group with 3 of 6, and one where two had faults: not 6 of 9.
    groups = [
        group(0, 1.0, 1.0),
        group(1, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0),
        group(2, None, None, 1.0),
        group(3, None),
    ]
    assert group_metrics(groups, correctness_differs)["correct_mean"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert source_metrics(groups, has_turns=False)["correct_mean_by_source"] == {
        "train": pytest.approx(2.5 / 3)
    }


def graded(*pairs: tuple[Trajectory, Score]) -> Group:
    """A group of these trajectories with their verdicts."""
    group = Group(0, make_task(), 0, [trajectory for trajectory, _ in pairs])
    group.scores.update({trajectory.trajectory_id: score for trajectory, score in pairs})
    return group


def test_reward_won_by_a_fallback_or_by_copies_is_shown() -> None:
    won = [("boxed", 1), ("last_line", 2), ("boxed", 3), ("boxed", 3)]
    pairs = [
        (Trajectory(str(i), (1,), [Segment(0, [token], [-1.0])]), replace(make_score(1.0), method=method))
        for i, (method, token) in enumerate(won)
    ]
    metrics = group_metrics([graded(*pairs)], correctness_differs)
    assert metrics["fallback_reward_share"] == pytest.approx(1 / 4)
    assert metrics["identical_reward_share"] == pytest.approx(2 / 4)


def test_credits_are_shown_per_turn_of_graded_samples() -> None:
    said, heard = Segment(0, [5, 6], [-1.0] * 2), Observed([9])
    group = graded(
        (Trajectory("0", (1,), [said, heard, said]), replace(make_score(), credits=[(1, 0.5), (3, 0.25)])),
        (Trajectory("1", (1,), [said, heard]), make_score()),
        (Trajectory("2", (1,), [said], is_greedy=True), replace(make_score(), credits=[(0, -3.0)])),
        (Trajectory("3", (1,), [said]), make_score(None)),
    )
    metrics = group_metrics([group], correctness_differs)
    # Of three turns; the greedy response and the fault are no part of it.
    assert (metrics["turn_credit_mean"], metrics["credited_share"]) == (0.25, 0.5)
    none = group_metrics([], correctness_differs)
    assert (none["turn_credit_mean"], none["credited_share"]) == (None, None)


def test_rewards_and_lengths_are_shown_by_verdict_without_greedy_baselines() -> None:
    def said(length: int) -> Trajectory:
        segment = Segment(0, list(range(length)), [-1.0] * length)
        return Trajectory(str(length), (1,), [segment], is_greedy=length == 100)

    given = [(1.0, 2), (1.0, 4), (0.0, 9), (None, 5), (1.0, 100)]
    group = graded(*((said(length), make_score(reward)) for reward, length in given))
    metrics = group_metrics([group], correctness_differs)
    assert metrics["reward_mean_by_outcome"] == {"correct": 1.0, "wrong": 0.0}
    assert metrics["response_tokens_mean_by_outcome"] == {"correct": 3.0, "wrong": 9.0, "fault": 5.0}
    assert metrics["correct_mean"] == pytest.approx(2 / 3)


def test_the_mean_of_each_named_score_is_over_the_responses_that_have_it() -> None:
    parts = [{"right": 1.0, "format": 0.5}, {"right": 0.0}, {}]
    group = graded(
        *((Trajectory(str(i), (1,)), replace(make_score(1.0), scores=own)) for i, own in enumerate(parts))
    )
    assert group_metrics([group], correctness_differs)["score_mean_by_part"] == {"right": 0.5, "format": 0.5}


def test_a_group_without_different_verdicts_has_no_signal_and_faults_do_not_count() -> None:
    def group(*rewards: float | None) -> Group:
        made = Group(0, make_task(), 0, [])
        made.scores.update({str(i): make_score(reward) for i, reward in enumerate(rewards)})
        return made

    metrics = group_metrics([group(1.0, 0.0), group(1.0, 1.0), group(0.0, None)], correctness_differs)
    assert metrics["groups_zero_signal"] == 2
    assert metrics["outcomes"] == {"correct": 3, "wrong": 2, "no_answer": 0, "fault": 1}
    assert metrics["outcomes_by_verifier"] == {"math": metrics["outcomes"]}
    assert metrics["correct_mean"] == pytest.approx((1 / 2 + 1 + 0) / 3)


def test_the_share_of_responses_that_the_length_limit_cut_is_of_sampled_ones() -> None:
    ends = (Finish.LENGTH, Finish.STOP, Finish.STOP, Finish.STOP, Finish.LENGTH)
    group = graded(
        *(
            (Trajectory(str(i), (1,), finish=end, is_greedy=i == 4), make_score(0.0))
            for i, end in enumerate(ends)
        )
    )
    assert group_metrics([group], correctness_differs)["cut_share"] == pytest.approx(1 / 4)
    assert group_metrics([], correctness_differs)["cut_share"] is None


def test_the_probability_of_going_on_is_of_responses_that_ended_by_themselves() -> None:
    group = Group(0, make_task(), 0, [])
    ended = [(Finish.STOP, -1e-9 * (index + 1)) for index in range(19)] + [(Finish.STOP, math.log(0.25))]
    for index, (finish, last) in enumerate([*ended, (Finish.LENGTH, -5.0), (Finish.STOP, -5.0)]):
        segments = [Segment(0, [5, 6], [-2.0, -3.0]), Segment(1, [7], [last])]
        group.trajectories.append(
            Trajectory(str(index), (1,), list(segments), finish=finish, is_greedy=index == 21)
        )
        group.scores[str(index)] = make_score(0.0)
    # Of 20, the 19th in order, to more digits than 1 - exp(log p) has.
    assert group_metrics([group], correctness_differs)["run_on_p95"] == pytest.approx(1.9e-8, rel=1e-6)
    del group.trajectories[:19]
    assert group_metrics([group], correctness_differs)["run_on_p95"] == pytest.approx(0.75)
    assert group_metrics([], correctness_differs)["run_on_p95"] is None


def test_a_trainer_idles_while_it_waits_for_a_batch_and_while_servers_drain() -> None:
    notebook = Notebook()
    # Two requests, 10 s apart.
    readings = [Reading(0.0, 0, 0, 0.0, 1, 0.0, 0.0, 0.0, 0.0, 0)]
    readings.append(Reading(10.0, 500, 0, 9.0, 1, 9.0, 9.0, 0.0, 0.0, 0))
    report = StepReport(notebook, FakeMeters(readings), FakeGrader(), [])
    report.asked(TakeRequest(0))
    report.given({"correct_mean": 0.5})
    metrics = {"wait_seconds": 1.0, "drain_seconds": 2.0, "publish_seconds": 0.5}
    report.asked(TakeRequest(1, step_metrics=metrics))
    (row,) = notebook.steps
    # (1 + 2) of 10 s; the server ran requests for 9 of them
    assert row["trainer_idle_share"] == pytest.approx(0.3)
    assert row["rollout_idle_share"] == pytest.approx(0.1)
    assert (row["step"], row["drain_seconds"], row["rollout_tokens_per_second"]) == (1, 2.0, 50.0)
    assert (row["verifier_killed_total"], row["faults_retried"]) == (2.0, 3)


@pytest.mark.parametrize(
    ("parameter", "row", "words"),
    [
        ("model.embed_tokens.weight", 2, "row 2 of model.embed_tokens.weight, the token <pad>"),
        ("lm_head.weight", 9, "row 9 of lm_head.weight, the token that the tokenizer lacks"),
        ("model.layers.0.mlp.up_proj.weight", 2, "row 2 of model.layers.0.mlp.up_proj.weight"),
        ("model.norm.weight", 0, "model.norm.weight"),
        ("model.layers.0.self_attn.q_proj.bias", 0, "model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_the_row_of_a_spike_is_named_with_its_token(parameter: str, row: int, words: str) -> None:
    notebook = Notebook()
    readings = [Reading(float(at), 0, 0, 0.0, 1, 0.0, 0.0, 0.0, 0.0, 0) for at in range(3)]
    pieces = {2: "<pad>"}
    report = StepReport(notebook, FakeMeters(readings), FakeGrader(), [], lambda token: pieces.get(token, ""))
    spike = GradientSpike(parameter, row, 0.97, 3381.0, 8452.0)
    report.asked(TakeRequest(0))
    report.asked(TakeRequest(1, step_metrics={"grad_norm": 3381.0}, spike=spike))
    report.asked(TakeRequest(2, step_metrics={"grad_norm": 0.4}))
    first, second = notebook.steps
    assert first["spike_row"] == words and not any(name.startswith("spike") for name in second)
    numbers = {"spike_share": 0.97, "spike_norm": 3381.0, "spike_times": 8452.0}
    assert {name: first[name] for name in numbers} == numbers
