"""Advantages of turns: by hand, against the plain advantage, and as an expected gradient counted out."""

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest

from asyncrl.algorithms.advantages import ADVANTAGES, STD_EPSILON, GroupRewards, group_advantages
from asyncrl.algorithms.turns import (
    LineReward,
    TurnRewards,
    as_runs,
    branch_advantages,
    credits_by_turn,
    line_advantages,
    mean_reward,
    turns,
)
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import TURN_ADVANTAGES


def of(name: str, *group: TurnRewards, greedy: TurnRewards | None = None) -> list[list[float]]:
    algorithm = Algorithm(advantage=name, credit="turns")
    return turns(group, [5] * len(group), ADVANTAGES[name], algorithm, greedy=greedy)


GROUP = (TurnRewards(1.0, [0.5, 0.0]), TurnRewards(0.0, [0.0, 0.25, 0.25]), TurnRewards(0.0, [-0.5]))
"""To go: 1.5, 1, 1; 0.5, 0.5, 0.25; -0.5, 0, 0. Means: 0.5, 0.5, 5/12."""


def test_a_turn_is_worth_what_followed_against_the_whole_group() -> None:
    assert of("dr_grpo", *GROUP) == [
        pytest.approx([1.0, 0.5]),
        pytest.approx([0.0, 0.0, 0.25 - 1.25 / 3]),
        pytest.approx([-1.0]),
    ]
    assert of("rloo", *GROUP)[0] == pytest.approx([1.5, 0.75])


def test_one_scale_holds_for_all_turns_of_a_group() -> None:
    # Std of the first turn: sqrt((1 + 0 + 1) / 2) = 1; the others' are smaller.
    assert of("grpo", *GROUP)[0] == pytest.approx([1.0 / (1 + STD_EPSILON), 0.5 / (1 + STD_EPSILON)])


def test_where_totals_are_equal_the_scale_is_that_of_later_turns() -> None:
    found = of("grpo", TurnRewards(0.0, [1.0, 0.0]), TurnRewards(0.0, [0.0, 1.0]))
    assert found[0] == [0.0, pytest.approx(-0.5 / 0.5**0.5, rel=1e-4)]
    assert found[1] == [0.0, pytest.approx(0.5 / 0.5**0.5, rel=1e-4)]


def test_the_first_turn_has_the_advantage_of_the_total() -> None:
    totals = GroupRewards([1.5, 0.5, -0.5], [5, 5, 5])
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"):
        algorithm = Algorithm(advantage=name)
        assert [each[0] for each in of(name, *GROUP)] == group_advantages(totals, ADVANTAGES[name], algorithm)


def test_the_greedy_response_is_compared_turn_by_turn_and_keeps_its_outcome_after_its_end() -> None:
    found = of("remax", TurnRewards(1.0, [0.5, 0.25]), greedy=TurnRewards(0.5, [0.25]))
    assert found == [[1.0, 0.75]]


@pytest.mark.parametrize("name", TURN_ADVANTAGES)
def test_without_credits_every_turn_has_the_plain_advantage_to_the_last_digit(name: str) -> None:
    rewards = [1.0, 1 / 3, 0.1, 0.7]
    group = [TurnRewards(reward, [0.0] * (1 + i)) for i, reward in enumerate(rewards)]
    greedy = TurnRewards(0.3, [0.0, 0.0]) if name == "remax" else None
    plain = group_advantages(
        GroupRewards(rewards, [5] * 4, 0.3 if greedy else None),
        ADVANTAGES[name],
        Algorithm(advantage=name),
    )
    assert of(name, *group, greedy=greedy) == [[x] * (1 + i) for i, x in enumerate(plain)]


def test_returns_that_are_as_good_as_equal_are_equal() -> None:
    nearly = [TurnRewards(1.0, [0.5, 1e-7 * i]) for i in range(3)]
    for name in ("grpo", "dr_grpo", "rloo"):
        assert of(name, *nearly) == [[0.0, 0.0]] * 3


def test_a_trajectory_without_a_token_has_an_advantage() -> None:
    assert of("dr_grpo", TurnRewards(0.0, []), TurnRewards(1.0, [1.0])) == [[-1.0], [1.0]]


def test_credits_belong_to_the_turn_of_their_token() -> None:
    assert credits_by_turn([(0, 0.1), (2, 0.2), (3, 1.0), (9, -1.0)], [3, 1, 4, 2]) == [0.3, 1.0, 0.0, -1.0]
    assert as_runs([3, 1], [0.5, -0.5]) == [(3, 0.5), (1, -0.5)]
    assert as_runs([3, 1], [0.5, 0.5]) == as_runs([], []) == []


STOP, GO = 0, 1
PROBABILITY = {0: {STOP: 0.4, GO: 0.6}, 1: {STOP: 0.7, GO: 0.3}}
"""Turn -> action -> probability."""
Earned = dict[tuple[int, ...], TurnRewards]
"""A trajectory's actions -> its reward."""
MIXED: Earned = {
    (STOP,): TurnRewards(0.25, [0.0]),
    (GO, STOP): TurnRewards(0.0, [0.5, 0.0]),
    (GO, GO): TurnRewards(1.0, [0.5, -0.75]),
}
GOING_ON_EARNS: Earned = {
    (STOP,): TurnRewards(0.0, [0.0]),
    (GO, STOP): TurnRewards(0.0, [0.0, 1.0]),
    (GO, GO): TurnRewards(0.0, [0.0, 1.0]),
}


def probability(actions: tuple[int, ...]) -> float:
    return math.prod(PROBABILITY[turn][action] for turn, action in enumerate(actions))


def score(turn: int, action: int) -> float:
    """d log p(action) / d theta, theta the logit of going on at this turn."""
    return (action == GO) - PROBABILITY[turn][GO]


def expected_gradient(earned: Earned, estimate: Callable[..., list[list[float]]]) -> list[float]:
    """Gradient of the two logits over all groups of three; `estimate` gives advantages of a group's turns."""
    found = [0.0, 0.0]
    for group in itertools.product(earned, repeat=3):
        weight = math.prod(map(probability, group)) / 3
        advantages = estimate(*(earned[actions] for actions in group))
        for actions, own in zip(group, advantages, strict=True):
            for turn, (action, advantage) in enumerate(zip(actions, own, strict=True)):
                found[turn] += weight * score(turn, action) * advantage
    return found


def true_gradient(earned: Earned) -> list[float]:
    """Gradient of the expected total reward."""
    return [
        sum(
            probability(actions) * score(turn, actions[turn]) * (rewards.outcome + sum(rewards.turns))
            for actions, rewards in earned.items()
            if len(actions) > turn
        )
        for turn in (0, 1)
    ]


@pytest.mark.parametrize("earned", [MIXED, GOING_ON_EARNS], ids=["mixed", "going on earns"])
@pytest.mark.parametrize(("name", "factor"), [("rloo", 1.0), ("dr_grpo", 2 / 3)])
def test_a_policy_that_chooses_when_to_stop_gets_the_gradient_of_its_reward(
    name: str, factor: float, earned: Earned
) -> None:
    found = expected_gradient(earned, lambda *group: of(name, *group))
    assert found == pytest.approx([factor * x for x in true_gradient(earned)], abs=1e-12)


def test_a_baseline_with_as_many_terms_as_the_own_turns_does_not_see_what_going_on_earns() -> None:
    """The construction that verl issue 7244 warns of, in the same count."""

    def by_index(*group: TurnRewards) -> list[list[float]]:
        rewards = [[*each.turns[:-1], each.turns[-1] + each.outcome] for each in group]
        reached = [[each[turn] for each in rewards if len(each) > turn] for turn in (0, 1)]
        means = [sum(values) / max(len(values), 1) for values in reached]
        return [
            [sum(each[t] - means[t] for t in range(turn, len(each))) for turn in range(len(each))]
            for each in rewards
        ]

    assert true_gradient(GOING_ON_EARNS)[0] == pytest.approx(0.24)
    assert expected_gradient(GOING_ON_EARNS, by_index)[0] == pytest.approx(0.0, abs=1e-12)


REWARDS = [[1.0, 0.0], [1.0], [0.0, 0.0, 0.75]]
BRANCHED = GroupRewards([0.5, 1.0, 0.25], [10, 20, 30], greedy_reward=0.25)
"""Means of REWARDS."""


def of_first(name: str) -> list[float]:
    algorithm = Algorithm(advantage=name)
    return branch_advantages(BRANCHED, 0, REWARDS[0], ADVANTAGES[name], algorithm)


def test_the_reward_of_a_trajectory_is_the_mean_of_its_branches() -> None:
    assert [mean_reward(each) for each in REWARDS] == BRANCHED.rewards
    # Three times 0.1, added as floats, is 0.30000000000000004.
    assert mean_reward([0.1, 0.1, 0.1]) == 0.1


def test_a_branch_stands_in_the_place_of_its_trajectory() -> None:
    # The others have 1 and 0.25, the mean of which is 0.625.
    assert of_first("rloo") == pytest.approx([1.0 - 0.625, 0.0 - 0.625])
    assert of_first("dr_grpo") == pytest.approx([2 / 3 * (1.0 - 0.625), 2 / 3 * (0.0 - 0.625)])
    assert of_first("remax") == [1.0 - 0.25, 0.0 - 0.25]
    assert of_first("gae") == [1.0, 0.0]
    # 1, 1, 0.25: mean 0.75, squared distances 0.0625, 0.0625, 0.25, so that the std is sqrt(0.375 / 2).
    std = math.sqrt(0.375 / 2)
    assert of_first("grpo")[0] == pytest.approx(0.25 / std, rel=1e-5)
    # 10 / 60 of 1, 20 / 60 of 1, 30 / 60 of 0.25: 0.625.
    assert of_first("opo")[0] == pytest.approx(1.0 - 0.625)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_branches_with_the_reward_of_their_trajectory_have_its_advantage(name: str) -> None:
    algorithm = Algorithm(advantage=name)
    whole = group_advantages(BRANCHED, ADVANTAGES[name], algorithm)
    for place, reward in enumerate(BRANCHED.rewards):
        own = branch_advantages(BRANCHED, place, [reward, reward], ADVANTAGES[name], algorithm)
        assert own == [whole[place]] * 2


def test_branches_that_differ_within_equal_trajectories_have_finite_advantages() -> None:
    equal = dataclasses.replace(BRANCHED, rewards=[0.5, 0.5, 0.5])
    own = branch_advantages(equal, 0, [1.0, 0.0], ADVANTAGES["grpo"], Algorithm(advantage="grpo"))
    assert own == pytest.approx([2 / math.sqrt(3), -2 / math.sqrt(3)], rel=1e-5)


def by_role(name: str, *episodes: dict[str, list[float]], **options: object) -> list[list[float]]:
    algorithm = Algorithm(advantage=name, **options)  # type: ignore[arg-type]
    lines = [
        [LineReward(role, reward, 4) for role, rewards in episode.items() for reward in rewards]
        for episode in episodes
    ]
    return line_advantages(lines, ADVANTAGES[name], algorithm)


EPISODES = [
    {"proposer": [1.0], "checker": [1.0]},
    {"proposer": [0.0], "checker": [1.0]},
    {"proposer": [1.0], "checker": [0.0]},
    {"proposer": [0.0], "checker": [0.0]},
]


def test_each_role_has_its_own_mean_and_std() -> None:
    assert by_role("dr_grpo", *EPISODES) == [[0.5, 0.5], [-0.5, 0.5], [0.5, -0.5], [-0.5, -0.5]]
    # Squared distances of 1/4 four times, over 3: std sqrt(1 / 3).
    up = 0.5 * math.sqrt(3)
    found = by_role("grpo", *EPISODES)
    assert found == [pytest.approx(own, rel=1e-5) for own in ([up, up], [-up, up], [up, -up], [-up, -up])]


def test_an_episode_in_which_a_role_is_silent_is_not_in_its_group() -> None:
    # The checker speaks in three episodes, with 1, 1 and 0: mean 2/3.
    silent = [*EPISODES[:3], {"proposer": [0.0]}]
    assert by_role("dr_grpo", *silent) == [
        [0.5, pytest.approx(1 / 3)],
        [-0.5, pytest.approx(1 / 3)],
        [0.5, pytest.approx(-2 / 3)],
        [-0.5],
    ]
    # Once alone: it has no baseline.
    assert by_role("rloo", EPISODES[0], {"proposer": [0.0]}) == [[1.0, 0.0], [-1.0]]


def test_a_role_whose_rewards_are_equal_has_no_advantage() -> None:
    flat = [{"proposer": [1.0], "checker": [score]} for score in (1.0, 0.0)]
    assert by_role("rloo", *flat) == [[0.0, 1.0], [0.0, -1.0]]


def test_a_role_with_several_conversations_counts_once_in_its_group() -> None:
    # The checker's means are 1/2 and 0; rloo takes the other's mean from each conversation's reward.
    found = by_role("rloo", {"proposer": [1.0], "checker": [1.0, 0.0]}, {"proposer": [1.0], "checker": [0.0]})
    assert found == [[0.0, 1.0, 0.0], [0.0, -0.5]]
