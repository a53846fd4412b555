"""A whole run with model.bitwise_agreement on a server and a trainer of its own."""

from pathlib import Path

import pytest
from fakes.whole_run import WholeRun


@pytest.mark.slow
@pytest.mark.parametrize("is_bitwise", [True, False])
def test_every_step_without_staleness_has_importance_ratios_of_exactly_1(tmp_path: Path, is_bitwise: bool):
    run = WholeRun(
        tmp_path,
        model={"bitwise_agreement": is_bitwise},
        rollout={"max_staleness": 0},
        trainer={"num_steps": 4, "learning_rate": 1e-3},
    )
    assert run.start().finish(seconds=600) == 0, run.output()
    steps = run.steps()
    assert len(steps) == 4
    found = {
        name: {row[name] for row in steps}
        for name in ("mismatch_kl", "mismatch_logprob_max", "mean_importance_ratio", "max_importance_ratio")
    }
    agreed = {
        "mismatch_kl": {0},
        "mismatch_logprob_max": {0},
        "mean_importance_ratio": {1},
        "max_importance_ratio": {1},
    }
    assert (found == agreed) == is_bitwise
