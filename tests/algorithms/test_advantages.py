import subprocess
import sys

import pytest

from asyncrl.algorithms.advantages import ADVANTAGES, dr_grpo, grpo


def test_dr_grpo_subtracts_the_mean_of_the_group():
    # mean 0.25
    assert dr_grpo([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_grpo_divides_by_the_sample_standard_deviation():
    # mean 0.25, squared deviations 0.5625 + 3 x 0.0625 = 0.75, sample variance 0.75 / 3 = 0.25, std 0.5
    assert grpo([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)


def test_a_group_without_differences_has_no_signal():
    assert grpo([0.1, 0.1, 0.1]) == [0.0, 0.0, 0.0]
    assert dr_grpo([0.7, 0.7]) == [0.0, 0.0]


def test_tiny_differences_are_not_blown_up():
    # std is about 7e-9, far below the 1e-6 in the denominator
    assert max(abs(x) for x in grpo([0.0, 1e-8])) < 0.01


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_of_a_group_sum_to_zero(name: str):
    assert sum(ADVANTAGES[name]([0.3, 1.2, -0.5, 1.0, 0.0])) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_a_group_of_one_has_no_baseline(name: str):
    with pytest.raises(ValueError, match="1 reward"):
        ADVANTAGES[name]([1.0])


def test_advantages_do_not_import_torch():
    code = "import sys, asyncrl.algorithms.advantages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
