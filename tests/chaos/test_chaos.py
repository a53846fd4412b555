"""A short chaos run; `make chaos` is the long one."""

from pathlib import Path

import pytest
from chaos.chaos import chaos


@pytest.mark.slow
def test_a_run_that_is_broken_again_and_again_loses_nothing_and_learns_all_the_same(tmp_path: Path) -> None:
    assert chaos(tmp_path, num_faults=8, seed=1) == []
