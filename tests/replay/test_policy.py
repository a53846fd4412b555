"""Which groups a batch takes: every order keeps the staleness bound, none lets a group starve."""

import random

import pytest
from fakes.records import correctness_differs, make_score, make_task

from asyncrl.records import Segment, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.policy import ORDERS, choose, length_bias, mean_version, signal


def make_group(
    number: int,
    *,
    version: int = 0,
    rewards: tuple[float | None, ...] = (0.0, 1.0),
    lengths: tuple[int, ...] = (2, 2),
    token_version: int | None = None,
    is_ready: bool = True,
) -> Group:
    made_by = version if token_version is None else token_version
    trajectories = [
        Trajectory(f"{number}-{sample}", (1,), [Segment(made_by, [5] * length, [-0.5] * length)])
        for sample, length in enumerate(lengths)
    ]
    group = Group(number, make_task(number), version, trajectories)
    group.state = GroupState.READY if is_ready else GroupState.OPEN
    group.scores = {
        t.trajectory_id: make_score(reward) for t, reward in zip(trajectories, rewards, strict=True)
    }
    return group


def chosen(
    live: list[Group], step: int, order: str, *, batch: int = 2, staleness: int = 2
) -> list[int] | None:
    groups = choose(
        live, step, batch_size=batch, max_staleness=staleness, order=order, has_signal=correctness_differs
    )
    return None if groups is None else [group.group_id for group in groups]


def test_freshness_prefers_groups_of_newer_tokens() -> None:
    live = [make_group(n, token_version=version) for n, version in enumerate((0, 2, 1, 2))]
    assert chosen(live, 0, "freshness") == [1, 3]


def test_signal_prefers_groups_whose_trajectories_differ_in_correctness() -> None:
    live = [make_group(0, rewards=(1.0, 1.0)), make_group(1, rewards=(0.0, 0.2)), make_group(2)]
    assert chosen(live, 0, "signal") == [1, 2]


def test_strict_admission_waits_for_a_straggler_that_admission_overtakes() -> None:
    live = [make_group(0, is_ready=False), make_group(1), make_group(2)]
    assert chosen(live, 0, "admission") == [1, 2]
    assert chosen(live, 0, "strict_admission") is None
    live[0].state = GroupState.READY
    assert chosen(live, 0, "strict_admission") == [0, 1]


def test_a_group_that_is_due_comes_before_any_preference() -> None:
    # Admitted at 0 with staleness 2: step 2 is the last that may take group 0.
    live = [make_group(0, rewards=(1.0, 1.0)), *(make_group(n, version=2) for n in (1, 2))]
    assert chosen(live, 1, "signal") == [1, 2]
    assert chosen(live, 2, "signal") == [0, 1]


def test_a_due_group_that_is_not_ready_is_waited_for() -> None:
    live = [make_group(0, is_ready=False), *(make_group(n, version=2) for n in (1, 2))]
    assert chosen(live, 2, "freshness") is None


@pytest.mark.parametrize("order", list(ORDERS))
def test_no_order_ever_lets_a_deadline_pass(order: str) -> None:
    rng = random.Random(order)
    for _ in range(60):
        batch, staleness = rng.randint(1, 3), rng.randint(0, 3)
        live: list[Group] = []
        num_admitted = 0
        for step in range(12):
            # As ReplayQueue.can_admit: the bound on what was ever admitted.
            while num_admitted < (staleness + step + 1) * batch:
                rewards = (float(rng.random() < 0.5), float(rng.random() < 0.5))
                live.append(make_group(num_admitted, version=step, rewards=rewards, is_ready=False))
                num_admitted += 1
            waiting = [group for group in live if group.state is GroupState.OPEN]
            rng.shuffle(waiting)
            taken = None
            while taken is None:
                # All ready is always enough: otherwise the run would stand still.
                taken = choose(
                    live,
                    step,
                    batch_size=batch,
                    max_staleness=staleness,
                    order=order,
                    has_signal=correctness_differs,
                )
                if taken is None:
                    waiting.pop().state = GroupState.READY
            assert len({group.group_id for group in taken}) == batch
            assert all(group.admitted_version + staleness >= step for group in taken)
            assert taken == sorted(taken, key=lambda group: group.group_id)
            live = [group for group in live if group not in taken]


def test_signal_is_the_variance_of_correctness_without_faults() -> None:
    # mean 0.5, squares 0.25 each
    assert signal(make_group(0, rewards=(0.0, 1.0))) == 0.25
    faulty = make_group(0, rewards=(1.0, None))
    assert signal(faulty) == 0.0 and not correctness_differs(faulty)


def test_mean_version_weighs_by_tokens() -> None:
    group = make_group(0, lengths=(1, 3))
    group.trajectories[1].segments = [Segment(4, [5] * 3, [-0.5] * 3)]
    # (1 x 0 + 3 x 4) / 4
    assert mean_version(group) == 3.0


def test_length_bias_compares_a_batch_with_those_it_overtook() -> None:
    batch = [make_group(1, lengths=(2, 2)), make_group(3, lengths=(4, 4))]
    left = [
        make_group(0, lengths=(9, 9), is_ready=False),
        make_group(2, lengths=(50, 50)),
        make_group(4, lengths=(50, 50), is_ready=False),
    ]
    # Only group 0 was overtaken: mean 3 of the batch, (2+2+4+4+9+9) / 6 = 5 with it.
    assert length_bias(batch, left) == {
        "overtaken_groups": 1,
        "overtaken_tokens_mean": 9.0,
        "aborted_trajectories": 0,
        "aborted_tokens_mean": 0.0,
        "length_bias": pytest.approx(3 / 5 - 1),
    }


def test_length_bias_sees_the_long_ones_that_were_aborted() -> None:
    # (2 + 2 + 20 + 24) / 4 = 12
    assert length_bias([make_group(1, lengths=(2, 2))], [], [20, 24]) == {
        "overtaken_groups": 0,
        "overtaken_tokens_mean": 0.0,
        "aborted_trajectories": 2,
        "aborted_tokens_mean": 22.0,
        "length_bias": pytest.approx(2 / 12 - 1),
    }


def test_the_order_signal_asks_who_has_a_gradient_before_it_compares_variances() -> None:
    live = [
        make_group(0, rewards=(1.0, 1.0)),
        make_group(1, rewards=(0.0, 1.0)),
        make_group(2, rewards=(0.0, 0.0)),
    ]
    sizes = {"batch_size": 1, "max_staleness": 9, "order": "signal"}
    (chosen,) = choose(live, 0, **sizes, has_signal=correctness_differs) or []
    assert chosen is live[1]
    # As under remax, where an all-wrong group has one when its greedy answer was right, and group 1 has none.
    (chosen,) = choose(live, 0, **sizes, has_signal=lambda group: group is live[2]) or []
    assert chosen is live[2]
