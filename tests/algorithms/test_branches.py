"""Advantages of branches that are judged each, against values computed by hand."""

import dataclasses
import math

import pytest

from asyncrl.algorithms.advantages import ADVANTAGES, GroupRewards, group_advantages
from asyncrl.algorithms.branches import LineReward, branch_advantages, line_advantages, mean_reward
from asyncrl.recipe import Algorithm

REWARDS = [[1.0, 0.0], [1.0], [0.0, 0.0, 0.75]]
GROUP = GroupRewards([0.5, 1.0, 0.25], [10, 20, 30], greedy_reward=0.25)
"""Means of REWARDS."""


def of_first(name: str) -> list[float]:
    algorithm = Algorithm(advantage=name)
    return branch_advantages(GROUP, 0, REWARDS[0], ADVANTAGES[name], algorithm)


def test_the_reward_of_a_trajectory_is_the_mean_of_its_branches() -> None:
    assert [mean_reward(each) for each in REWARDS] == GROUP.rewards
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
    whole = group_advantages(GROUP, ADVANTAGES[name], algorithm)
    for place, reward in enumerate(GROUP.rewards):
        own = branch_advantages(GROUP, place, [reward, reward], ADVANTAGES[name], algorithm)
        assert own == [whole[place]] * 2


def test_branches_that_differ_within_equal_trajectories_have_finite_advantages() -> None:
    equal = dataclasses.replace(GROUP, rewards=[0.5, 0.5, 0.5])
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
