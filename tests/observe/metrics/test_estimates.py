"""Accuracies, avg@k, pass@k and differences against values worked out by hand, and how often they err."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

from asyncrl.observe.metrics.estimates import (
    accuracy,
    avg_at_k,
    chance_of_a_correct_draw,
    paired_difference,
    pass_at_k,
    share_in_clusters,
)

RIGHT, WRONG = True, False


def test_wilson_interval_of_eight_out_of_ten() -> None:
    # z^2 = 3.8415; centre (0.8 + 0.19207) / 1.38415 = 0.71674,
    # half sqrt(0.061464 + 0.036892) / 1.38415 = 0.22658
    estimate = accuracy(8, 10)
    assert estimate.mean == 0.8
    assert estimate.low == pytest.approx(0.4902, abs=1e-4)
    assert estimate.high == pytest.approx(0.9433, abs=1e-4)


def test_a_perfect_score_keeps_an_interval() -> None:
    # At 10 of 10 the lower bound is 1 / (1 + z^2 / 10) = 1 / 1.38415.
    estimate = accuracy(10, 10)
    assert (estimate.mean, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(0.7225, abs=1e-4)
    nothing = accuracy(0, 10)
    assert (nothing.mean, nothing.low) == (0.0, 0.0)
    assert nothing.high == pytest.approx(1 - 0.7225, abs=1e-4)


def test_pass_at_k_of_a_task_counts_the_draws_without_a_correct_sample() -> None:
    # 4 samples, 2 correct: of the 6 pairs one holds two wrong ones.
    assert chance_of_a_correct_draw(2, 4, k=2) == pytest.approx(5 / 6)
    # 3 wrong samples cannot fill a draw of 4.
    assert chance_of_a_correct_draw(1, 4, k=4) == 1.0
    assert chance_of_a_correct_draw(0, 4, k=4) == 0.0


def test_avg_at_k_is_the_mean_share_over_tasks() -> None:
    estimate = avg_at_k([[RIGHT] * 4, [RIGHT] + [WRONG] * 3, [WRONG] * 4, [RIGHT, RIGHT, WRONG, WRONG]])
    assert estimate.mean == pytest.approx((1 + 0.25 + 0 + 0.5) / 4)
    assert estimate.low < estimate.mean < estimate.high


def test_pass_at_k_with_k_samples_is_the_plain_accuracy_interval() -> None:
    # With k of k samples each task scores 0 or 1, so 8 solved of 10 tasks is Wilson at 8 of 10 or a little
    # wider: the sample variance divides by n - 1, which makes p(1-p)/variance = 9 < 10 tasks, held at 10.
    tasks = [[RIGHT, WRONG]] * 8 + [[WRONG, WRONG]] * 2
    assert pass_at_k(tasks, 2) == accuracy(8, 10)


def test_repeated_samples_narrow_the_interval_only_as_far_as_tasks_agree() -> None:
    # All tasks at one half: 10 tasks x 4 samples count as 40 draws.
    even = avg_at_k([[RIGHT, RIGHT, WRONG, WRONG]] * 10)
    assert (even.low, even.high) == (accuracy(20, 40).low, accuracy(20, 40).high)
    # Tasks at 0 or 1: the four samples of a task say nothing new, 10 tasks count as 10.
    split = avg_at_k([[RIGHT] * 4] * 5 + [[WRONG] * 4] * 5)
    assert (split.low, split.high) == (accuracy(5, 10).low, accuracy(5, 10).high)


def test_tasks_with_too_few_graded_samples_are_left_out() -> None:
    estimate = pass_at_k([[RIGHT, WRONG], [RIGHT]], 2)
    assert (estimate.mean, estimate.num_tasks) == (1.0, 1)


def test_paired_difference_against_agresti_and_min_by_hand() -> None:
    # 10 tasks: 4 only the second model gets right, 1 only the first, 5 both or none. With 0.5 more in each of
    # the four cells of the table: b = 4.5, c = 1.5, n = 12: centre 3 / 12 = 0.25,
    # half 1.95996 x sqrt(((4.5 + 1.5) / 12 - 0.25^2) / 12) = 1.95996 x sqrt(0.4375 / 12) = 0.37423
    first = [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    second = [1, 1, 1, 1, 0, 1, 1, 0, 0, 0]
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(0.3)
    assert (found.low, found.high) == (
        pytest.approx(0.25 - 0.37423, abs=1e-4),
        pytest.approx(0.25 + 0.37423, abs=1e-4),
    )
    assert not found.is_clear()


def test_models_that_never_differ_are_not_proved_equal() -> None:
    found = paired_difference([0.5, 1.0], [0.5, 1.0])
    # centre 0, half 1.95996 x sqrt((1 / 4) / 4) = 0.49
    assert (found.mean, found.low, found.high) == (
        0.0,
        pytest.approx(-0.49, abs=1e-3),
        pytest.approx(0.49, abs=1e-3),
    )


def test_pairing_is_sharper_than_two_intervals_side_by_side() -> None:
    first = [0.0, 1.0] * 200
    second = [min(1.0, score + 0.25) for score in first]
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(0.125) and found.is_clear()
    low, high = avg_at_k([[bool(score)] for score in first]).low, avg_at_k([[bool(s)] for s in first]).high
    assert found.high - found.low < (high - low) / 2


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (lambda: accuracy(0, 0), "0 correct of 0"),
        (lambda: pass_at_k([[RIGHT] * 4], 8), "pass@8 needs"),
        (lambda: paired_difference([], []), "at least one task"),
        (lambda: share_in_clusters([(0, 0)]), "at least one thing"),
    ],
)
def test_an_estimate_of_nothing_is_refused(estimate: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        estimate()


def scored(wins: int, losses: int, num_tasks: int) -> tuple[list[float], list[float]]:
    """Both sides' answers: one right where the other is wrong, and both wrong on the rest."""
    rest = [0.0] * (num_tasks - wins - losses)
    return [0.0] * wins + [1.0] * losses + rest, [1.0] * wins + [0.0] * losses + rest


def chance_of_so_uneven_coins(wins: int, losses: int) -> float:
    """McNemar's exact test, two-sided."""
    num = wins + losses
    tail = sum(math.comb(num, few) for few in range(min(wins, losses) + 1)) / 2**num
    return min(1.0, 2 * tail)


@pytest.mark.parametrize(
    ("wins", "losses", "is_clear"),
    [(4, 0, False), (5, 0, False), (6, 0, True), (0, 6, True), (8, 1, True), (7, 1, False), (0, 0, False)],
)
def test_few_wins_are_clear_where_the_exact_test_says_so(wins: int, losses: int, is_clear: bool) -> None:
    assert paired_difference(*scored(wins, losses, 128)).is_clear() is is_clear


def test_no_difference_of_right_and_wrong_answers_is_clear_that_mcnemars_test_finds_within_chance() -> None:
    for num_tasks in (1, 2, 5, 12, 40):
        for wins, losses in itertools.product(range(num_tasks + 1), repeat=2):
            if wins + losses > num_tasks:
                continue
            found = paired_difference(*scored(wins, losses, num_tasks))
            assert found.low <= found.mean <= found.high
            assert not found.is_clear() or chance_of_so_uneven_coins(wins, losses) <= 0.05


@pytest.mark.parametrize("num_tasks", [4, 8, 16, 30])
@pytest.mark.parametrize("share_differing", [0.02, 0.1, 0.3, 0.7, 1.0])
def test_equal_sides_are_called_different_at_most_once_in_twenty(
    num_tasks: int, share_differing: float
) -> None:
    # Over all outcomes there are: a task differs with that chance, and either side wins it as often.
    each, err = share_differing / 2, 0.0
    for wins in range(num_tasks + 1):
        for losses in range(num_tasks + 1 - wins):
            if paired_difference(*scored(wins, losses, num_tasks)).is_clear():
                ways = math.comb(num_tasks, wins) * math.comb(num_tasks - wins, losses)
                err += ways * each ** (wins + losses) * (1 - share_differing) ** (num_tasks - wins - losses)
    assert err <= 0.05


@pytest.mark.parametrize("num_tasks", [4, 8, 16])
def test_equal_sides_with_samples_are_called_different_at_most_once_in_twenty(num_tasks: int) -> None:
    draw = random.Random(0)
    num_clear, num_trials = 0, 2_000
    for _ in range(num_trials):
        chances = [draw.choice((0.05, 0.3, 0.9)) for _ in range(num_tasks)]
        sides = [[sum(draw.random() < p for _ in range(8)) / 8 for p in chances] for _ in range(2)]
        num_clear += paired_difference(*sides).is_clear()
    # 5% of 2,000 are 100, and all but one in a thousand draws of that have at most 130.
    assert num_clear <= 130


def test_shares_of_samples_are_clear_where_few_choices_of_signs_are_as_far() -> None:
    # Four tasks always leave 2 of 16 choices of signs; six leave 2 of 64.
    assert not paired_difference([0.0] * 100, [0.5, 0.25, 0.75, 1.0] + [0.0] * 96).is_clear()
    assert paired_difference([0.0] * 100, [0.5, 0.25, 0.75, 1.0, 0.5, 0.75] + [0.0] * 94).is_clear()
    # Thirds add up to other roundings in another order.
    thirds = [1 / 3, 2 / 3, 1 / 3, 1.0, 1 / 3]
    found = paired_difference([0.0] * 100, thirds + [0.0] * 95)
    assert found.low <= 0.0 < found.mean


def test_a_share_in_clusters_by_hand() -> None:
    found = share_in_clusters([(4, 4), (0, 4), (2, 4), (1, 4)])
    # p = 7/16; residuals 2.25, -1.75, 0.25, -0.75; their squares sum to 8.75; variance 4/3 * 8.75 / 256.
    variance = 4 / 3 * 8.75 / 256
    p, spread = 7 / 16, 1.959963984540054**2 / (7 / 16 * 9 / 16 / variance)
    centre, half = (
        (p + spread / 2) / (1 + spread),
        math.sqrt(p * (1 - p) * spread + spread**2 / 4) / (1 + spread),
    )
    assert (found.mean, found.num_tasks) == (p, 4)
    assert found.low == pytest.approx(centre - half) and found.high == pytest.approx(centre + half)


def test_things_of_one_task_each_are_wilsons_and_alike_ones_count_once() -> None:
    assert share_in_clusters([(1, 1)] * 8 + [(0, 1)] * 2).high == pytest.approx(
        accuracy(8, 10).high, abs=0.02
    )
    assert share_in_clusters([(0, 6)] * 10).high == pytest.approx(accuracy(0, 10).high)
    assert share_in_clusters([(3, 3), (0, 0)]).num_tasks == 1


@pytest.mark.parametrize(("num_tasks", "spread"), [(12, 0.0), (12, 0.3), (40, 0.3), (40, 1.0)])
def test_intervals_in_clusters_hold_the_true_share_about_95_times_in_100(
    num_tasks: int, spread: float
) -> None:
    """`spread`: how far a task's chance is from the common one of 0.3; at 1.0 tasks are all or nothing."""
    source, times, covered = random.Random(5), 1000, 0
    for _ in range(times):
        clusters = []
        for _ in range(num_tasks):
            size = source.randint(1, 8)
            own = 0.3 if source.random() > spread else float(source.random() < 0.3)
            clusters.append((sum(source.random() < own for _ in range(size)), size))
        found = share_in_clusters(clusters)
        covered += found.low <= 0.3 <= found.high
    assert 0.92 <= covered / times <= 0.99, covered
