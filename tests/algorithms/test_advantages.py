import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.advantages import (
    ADVANTAGES,
    STD_EPSILON,
    GroupRewards,
    asym_re,
    dr_grpo,
    find_advantage,
    gdpo,
    group_advantages,
    grpo,
    has_signal,
    is_flat,
    max_rl,
    opo,
    pass_at_k,
    pass_at_k_training,
    remax,
    rloo,
    w_reinforce,
)
from asyncrl.errors import InputError
from asyncrl.recipe.algorithm_terms import RAW_ADVANTAGES
from asyncrl.recipe.sections.algorithm import Algorithm

DEFAULT = Algorithm()
GDPO = Algorithm(advantage="gdpo")


def of_two(name: str) -> str | dict[str, object]:
    return {"name": name, "k": 2} if name.startswith("pass_at_k") else name


def group(*rewards: float, lengths: list[int] | None = None, greedy: float | None = None) -> GroupRewards:
    return GroupRewards(rewards, lengths or [1] * len(rewards), greedy)


def test_dr_grpo_subtracts_the_mean_of_the_group():
    # mean 0.25
    assert dr_grpo(group(1.0, 0.0, 0.0, 0.0), DEFAULT) == [0.75, -0.25, -0.25, -0.25]


def test_grpo_divides_by_the_sample_standard_deviation():
    # mean 0.25, squared deviations 0.5625 + 3 x 0.0625 = 0.75, sample variance 0.75 / 3 = 0.25, std 0.5
    assert grpo(group(1.0, 0.0, 0.0, 0.0), DEFAULT) == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)


def test_rloo_subtracts_the_mean_of_the_others():
    # 1 - 0, then 0 - 1/3
    assert rloo(group(1.0, 0.0, 0.0, 0.0), DEFAULT) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_remax_subtracts_the_reward_of_the_greedy_answer():
    assert remax(group(1.0, 0.0, 0.5, greedy=0.5), DEFAULT) == [0.5, -0.5, 0.0]


def test_opo_weighs_the_baseline_by_length():
    # (3 x 1 + 1 x 0) / 4 = 0.75
    assert opo(group(1.0, 0.0, lengths=[3, 1]), DEFAULT) == [0.25, -0.75]


def test_opo_of_empty_answers_has_the_plain_mean():
    assert opo(group(1.0, 0.0, lengths=[0, 0]), DEFAULT) == [0.5, -0.5]


def test_pass_at_k_credits_an_answer_with_what_the_best_of_k_would_lose_without_it():
    # n = 3, k = 2, rewards 1, 0, 0: of the 3 pairs two hold the right answer, each would fall from 1 to 0:
    # s = 2/3, times n = 2. The wrong ones are never missed.
    assert pass_at_k(
        group(1.0, 0.0, 0.0), Algorithm(advantage={"name": "pass_at_k", "k": 2})
    ) == pytest.approx([2.0, 0.0, 0.0])
    # Two right of three: only the pairs {1, 3} and {2, 3} need one of them: s = 1/3 each, times n.
    assert pass_at_k(
        group(1.0, 1.0, 0.0), Algorithm(advantage={"name": "pass_at_k", "k": 2})
    ) == pytest.approx([1.0, 1.0, 0.0])


def test_pass_at_k_agrees_with_enumerating_the_subsets():
    rewards = [0.3, 1.2, -0.5, 1.0, 0.0, 1.2]
    for k in (2, 3, 5, 6):
        subsets = list(itertools.combinations(range(6), k))
        wanted = []
        for i in range(6):
            losses = [
                max(rewards[j] for j in s) - max(rewards[j] for j in s if j != i) for s in subsets if i in s
            ]
            wanted.append(6 * sum(losses) / len(subsets))
        assert pass_at_k(
            group(*rewards), Algorithm(advantage={"name": "pass_at_k", "k": k})
        ) == pytest.approx(wanted)


def test_pass_at_k_of_a_group_that_faults_made_smaller_takes_all_of_it():
    assert pass_at_k(group(1.0, 0.0), Algorithm(advantage={"name": "pass_at_k", "k": 4})) == pytest.approx(
        [2.0, 0.0]
    )


def test_pass_at_k_training_scales_by_the_std_of_the_best_of_k():
    # n = 4, one right, k = 2: R = 1 - C(3,2) / C(4,2) = 1/2, std 1/2. Right: 1/2 over it. Wrong:
    # 1/2 - C(2,1) / C(3,1) = -1/6 over it. PKPO gives 2 and 0.
    one_of_four = group(1.0, 0.0, 0.0, 0.0)
    found = pass_at_k_training(one_of_four, Algorithm(advantage={"name": "pass_at_k_training", "k": 2}))
    assert found == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], rel=1e-5)
    assert pass_at_k(one_of_four, Algorithm(advantage={"name": "pass_at_k", "k": 2})) == pytest.approx(
        [2.0, 0.0, 0.0, 0.0]
    )


def test_pass_at_k_training_of_any_rewards_agrees_with_enumerating_the_subsets():
    rewards = [0.3, 1.2, -0.5, 1.0, 0.0, 1.2]
    for k in (2, 3, 5):
        subsets = list(itertools.combinations(range(6), k))
        bests = np.array([max(rewards[j] for j in s) for s in subsets])
        wanted = [
            (bests[[i in s for s in subsets]].mean() - bests.mean()) / (bests.std() + STD_EPSILON)
            if bests.std() > 1e-9
            else 0.0
            for i in range(6)
        ]
        found = pass_at_k_training(
            group(*rewards), Algorithm(advantage={"name": "pass_at_k_training", "k": k})
        )
        assert found == pytest.approx(wanted)


def test_max_rl_divides_by_the_mean():
    # mean 1/4: (1 - 1/4) / (1/4) = 3; mean 3/4: (1 - 3/4) / (3/4) = 1/3
    assert max_rl(group(1.0, 0.0, 0.0, 0.0), DEFAULT) == [3.0, -1.0, -1.0, -1.0]
    assert max_rl(group(1.0, 1.0, 1.0, 0.0), DEFAULT) == pytest.approx([1 / 3] * 3 + [-1.0])


@pytest.mark.parametrize("n", [2, 4, 7])
def test_the_expected_gradient_of_max_rl_is_that_of_the_passes_at_k_over_k(n: int):
    # A policy that is right with probability p, with dp = 1: d ln p = 1 / p, d ln(1 - p) = -1 / (1 - p);
    # d pass@k = k (1 - p)^(k - 1).
    for p in (0.1, 0.5, 0.9):
        gradient = 0.0
        for right in range(n + 1):
            found = max_rl(group(*[1.0] * right, *[0.0] * (n - right)), DEFAULT)
            slopes = [1 / p] * right + [-1 / (1 - p)] * (n - right)
            chance = math.comb(n, right) * p**right * (1 - p) ** (n - right)
            gradient += chance * sum(a * slope for a, slope in zip(found, slopes, strict=True)) / n
        assert gradient == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, n)))


@pytest.mark.parametrize("rewards", [(0.0, 0.0), (-1.0, 1.0), (-1.0, 0.0)])
def test_max_rl_without_a_mean_above_zero_teaches_nothing(rewards: tuple[float, ...]):
    assert max_rl(group(*rewards), DEFAULT) == [0.0, 0.0]


@pytest.mark.parametrize("keys", [{"overlong": {"buffer_tokens": 8}}, {"cut_off_reward": -0.5}])
def test_max_rl_with_rewards_below_zero_is_refused(keys: dict[str, float]):
    with pytest.raises(ValueError, match="divides by their mean, which must be above 0"):
        Algorithm(advantage="max_rl", **keys)
    assert Algorithm(advantage="max_rl", cut_off_reward=0.0).cut_off_reward == 0.0


def two_scores(*scores: tuple[float, float]) -> GroupRewards:
    parts = [{"right": right, "format": form} for right, form in scores]
    return GroupRewards([right + form for right, form in scores], [1] * len(scores), parts=parts)


def test_gdpo_normalizes_each_score_before_it_adds_them():
    # right (1000): 1.5, -0.5 x3; format (0110): mean 0.5, std 0.57735: -+0.866025. grpo of the sums: 0.5 x3
    # and -1.5.
    several = two_scores((1, 0), (0, 1), (0, 1), (0, 0))
    found = gdpo(several, GDPO)
    assert found == pytest.approx([0.633975, 0.366025, 0.366025, -1.366025], abs=1e-5)
    assert grpo(several, DEFAULT) == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-5)
    halved = gdpo(several, Algorithm(advantage={"name": "gdpo", "part_weights": {"format": 0.5}}))
    assert halved == pytest.approx([1.5 - 0.433013, -0.5 + 0.433013, -0.5 + 0.433013, -0.933013], abs=1e-5)


def test_gdpo_tells_apart_what_has_equal_sums():
    algorithm = Algorithm(advantage={"name": "gdpo", "part_weights": {"format": 0.5}})
    equal = two_scores((1, 0), (0, 1))
    found = group_advantages(equal, gdpo, algorithm)
    assert found == pytest.approx([0.5 / 2**0.5, -0.5 / 2**0.5], rel=1e-5)


def test_gdpo_leaves_out_a_score_that_is_as_good_as_equal():
    nearly = two_scores((1, 0.3), (0, 0.3000001), (0, 0.3))
    assert gdpo(nearly, GDPO) == pytest.approx(grpo(group(1.0, 0.0, 0.0), DEFAULT))


def test_gdpo_without_named_scores_is_grpo_and_a_verdict_that_lacks_one_counts_as_0():
    assert gdpo(group(1.0, 0.0, 0.0), GDPO) == grpo(group(1.0, 0.0, 0.0), DEFAULT)
    timed_out = GroupRewards([2.0, 0.0, 1.0], [1] * 3, parts=[{"a": 1.0, "b": 1.0}, {}, {"a": 1.0, "b": 0.0}])
    wanted = [
        x + y for x, y in zip(grpo(group(1, 0, 1), DEFAULT), grpo(group(1, 0, 0), DEFAULT), strict=True)
    ]
    assert gdpo(timed_out, GDPO) == pytest.approx(wanted)


@pytest.mark.parametrize("keys", [{"overlong": {"buffer_tokens": 8}}, {"cut_off_reward": 0.0}])
def test_gdpo_with_a_reward_that_no_score_has_is_refused(keys: dict[str, float]):
    with pytest.raises(ValueError, match="gdpo takes the named scores of verdicts"):
        Algorithm(advantage="gdpo", **keys)


def test_w_reinforce_weighs_right_answers_a_tenth_of_wrong_ones():
    assert w_reinforce(group(1.0, 0.0), Algorithm(advantage="w_reinforce")) == [0.1, -1.0]
    negative = Algorithm(advantage={"name": "w_reinforce", "positive_scale": 0.0})
    assert w_reinforce(group(1.0, 0.0, 0.0), negative) == [0.0, -1.0, -1.0]


def test_asym_re_moves_the_baseline_below_the_mean():
    # 1 - (1/4 - 0.1), 0 - (1/4 - 0.1)
    assert asym_re(group(1.0, 0.0, 0.0, 0.0), Algorithm(advantage="asym_re")) == pytest.approx(
        [0.85, -0.15, -0.15, -0.15]
    )
    assert asym_re(group(0.0, 0.0), Algorithm(advantage={"name": "asym_re", "offset": -0.3})) == [0.3, 0.3]
    with pytest.raises(ValueError, match="offset"):
        Algorithm(advantage={"name": "asym_re", "offset": 0.0})


@pytest.mark.parametrize("name", ["w_reinforce", "asym_re"])
def test_groups_of_equal_rewards_teach_under_advantages_that_weigh_right_and_wrong_apart(name: str):
    algorithm = Algorithm(advantage=name)
    for rewards in ((0.0, 0.0), (1.0, 1.0)):
        assert has_signal(group(*rewards), ADVANTAGES[name], algorithm)
    assert algorithm.min_group_size() == (1 if name == "w_reinforce" else 2)


def test_tiny_differences_are_not_blown_up():
    # std is about 7e-9, far below the 1e-6 in the denominator
    assert max(abs(x) for x in grpo(group(0.0, 1e-8), DEFAULT)) < 0.01


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_advantages_of_a_group_sum_to_zero(name: str):
    assert sum(ADVANTAGES[name](group(0.3, 1.2, -0.5, 1.0, 0.0), DEFAULT)) == pytest.approx(0.0, abs=1e-9)


def test_a_group_of_one_has_no_baseline():
    with pytest.raises(ValueError, match="1 reward"):
        group(1.0)


OWN = """
import math
def median(group, options):
    middle = sorted(group.rewards)[len(group.rewards) // 2]
    return [reward - middle for reward in group.rewards]
def short(group, options): return [0.0]
def undefined(group, options): return [math.nan for _ in group.rewards]
def broken(group, options): return 1 / 0
"""


def test_an_advantage_of_ones_own_is_found_and_used(tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    advantage = find_advantage(Algorithm(advantage=f"{tmp_path}/own.py:median"))
    assert advantage(group(3.0, 1.0, 2.0), DEFAULT) == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", r"own\.py:short.*gave \[0\.0\]; expected a list of 3 floats"),
        ("undefined", r"expected finite floats"),
        ("broken", r"raised ZeroDivisionError"),
        ("missing", r'has no "missing"'),
    ],
)
def test_an_advantage_that_breaks_the_contract_is_refused(tmp_path: Path, name: str, message: str):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(InputError, match=message):
        find_advantage(Algorithm(advantage=f"{tmp_path}/own.py:{name}"))


EXAMPLES_ARE_RIGHT = """
def centred(group, options):
    if len(group.rewards) == 4:
        {what}
    mean = sum(group.rewards) / len(group.rewards)
    return [reward - mean for reward in group.rewards]
"""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("return [None] * 4", r"gave \[None, None, None, None\], None at place 0; expected finite floats"),
        ("return [0.5, -0.5]", r"gave \[0\.5, -0\.5\]; expected a list of 4 floats"),
        ("return (0.5, -0.5, 0.5, -0.5)", "expected a list of 4 floats"),
        ("return None", "gave None; expected a list of 4 floats"),
        ("return ['1', 0.0, 0.0, 0.0]", "'1' at place 0; expected finite floats"),
        ("return [0.0, float('nan'), 0.0, 0.0]", "nan at place 1; expected finite floats"),
        ("return [0.0, 0.0, 0.0, float('-inf')]", "-inf at place 3; expected finite floats"),
        ("return [2e39, 0.0, 0.0, 0.0]", r"2e\+39 at place 0; expected .* at most 3\.4e\+38 \(float32\)"),
        ("return [10 ** 400, 0, 0, 0]", "at place 0; expected finite floats"),
        ("return [1 / 0]", "raised ZeroDivisionError: division by zero"),
        ("raise SystemError('gone')", "raised SystemError: gone"),
    ],
)
def test_what_an_advantage_gives_is_checked_at_each_call(tmp_path: Path, what: str, message: str):
    (tmp_path / "own.py").write_text(EXAMPLES_ARE_RIGHT.format(what=what))
    algorithm = Algorithm(advantage=f"{tmp_path}/own.py:centred")
    advantage = find_advantage(algorithm)
    assert group_advantages(group(1.0, 0.0), advantage, algorithm) == [0.5, -0.5]
    called = r"algorithm\.advantage .*own\.py:centred, called with GroupRewards\(rewards=\[1\.0, 0\.0, 0\.0, "
    for call in (group_advantages, has_signal):
        with pytest.raises(InputError, match=called + ".*" + message):
            call(group(1.0, 0.0, 0.0, 1.0), advantage, algorithm)


def test_numbers_of_other_kinds_become_floats():
    found = group_advantages(group(1.0, 0.0), lambda *_: [np.float32(0.5), 1], DEFAULT)
    assert [(type(value), value) for value in found] == [(float, 0.5), (float, 1.0)]


SEES_ANY_DIFFERENCE = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "opo", "pass_at_k")
NOISE = [(0.1, 0.1, 0.1), (1.0, 0.99999, 1.0), (0.5, 0.4999999999999999, 0.5), (-300.0, -300.2, -300.1)]


@pytest.mark.parametrize("rewards", NOISE)
@pytest.mark.parametrize("name", sorted(ADVANTAGES.keys() - {*RAW_ADVANTAGES, "asym_re"}))
def test_rewards_one_rounding_apart_are_equal(name: str, rewards: tuple[float, ...]):
    algorithm = Algorithm(advantage=of_two(name))
    noisy = group(*rewards, lengths=[1, 2, 5], greedy=rewards[0])
    assert group_advantages(noisy, ADVANTAGES[name], algorithm) == [0.0, 0.0, 0.0]
    assert not has_signal(noisy, ADVANTAGES[name], algorithm)
    if name in SEES_ANY_DIFFERENCE and len(set(rewards)) > 1:
        # The key is what decides.
        exact = Algorithm(advantage=of_two(name), least_reward_spread=0.0)
        assert has_signal(noisy, ADVANTAGES[name], exact)


def test_an_advantage_of_ones_own_gets_equal_rewards_where_they_are_as_good_as_equal():
    asked = []
    group_advantages(group(1.0, 0.99999), lambda found, _: asked.append(found.rewards) or [0.0, 0.0], DEFAULT)
    assert asked == [[1.0, 1.0]]


@given(
    st.lists(st.floats(-1000, 1000), min_size=2, max_size=8),
    st.sampled_from(["grpo", "dr_grpo", "rloo", "opo", "reinforce_pp_baseline"]),
    st.floats(0, 0.5),
)
def test_a_group_has_signal_exactly_where_its_rewards_are_apart(
    rewards: list[float], name: str, least: float
):
    algorithm = Algorithm(advantage=name, least_reward_spread=least)
    apart = max(rewards) - min(rewards)
    is_apart = apart > 0 and apart >= least * max(1.0, *map(abs, rewards))
    found = group_advantages(group(*rewards), ADVANTAGES[name], algorithm)
    assert any(found) == has_signal(group(*rewards), ADVANTAGES[name], algorithm) == is_apart


def test_the_scale_of_rewards_is_at_least_that_of_scores():
    assert is_flat([0.0, 5e-4], DEFAULT) and not is_flat([0.0, 0.001], DEFAULT)
    assert is_flat([1000.0, 1000.9], DEFAULT) and not is_flat([1000.0, 1001.1], DEFAULT)


@pytest.mark.parametrize("name", ["remax", *RAW_ADVANTAGES])
def test_one_response_per_prompt_is_a_group(name: str):
    algorithm = Algorithm(advantage=name)
    alone = GroupRewards([1.0], [3], 0.25 if name == "remax" else None, min_size=algorithm.min_group_size())
    found = group_advantages(alone, ADVANTAGES[name], algorithm)
    assert found == [{"remax": 0.75, "w_reinforce": 0.1}.get(name, 1.0)]
    assert has_signal(alone, ADVANTAGES[name], algorithm)


def test_advantages_do_not_import_torch():
    code = "import sys, asyncrl.algorithms.advantages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp", "reinforce_pp_baseline", "gdpo", "gae"])
def test_an_advantage_with_a_scale_of_its_own_is_not_divided_again(name: str):
    with pytest.raises(ValueError, match=f"{name} has a scale of its own already"):
        Algorithm(advantage=name, divides_by_batch_std=True)
