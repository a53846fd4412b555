import pytest

from asyncrl.algorithms.shaping import soft_overlong


@pytest.mark.parametrize(
    ("num_tokens", "penalty"), [(10, 0.0), (60, 0.0), (70, -0.25), (90, -0.75), (100, -1.0)]
)
def test_the_penalty_falls_linearly_over_the_buffer(num_tokens: int, penalty: float):
    assert soft_overlong(num_tokens, limit_tokens=100, buffer_tokens=40) == pytest.approx(penalty)


def test_without_a_buffer_nothing_is_punished():
    assert soft_overlong(100, limit_tokens=100, buffer_tokens=0) == 0.0
