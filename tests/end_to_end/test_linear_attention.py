"""A whole run of Qwen3-Next, killed and resumed: servers and the packed tree find the same log-probs."""

import signal
from pathlib import Path

import pytest
from fakes.base_model import write_base_model
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli

LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
LINEAR |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
LAYERS = {"full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"]}


@pytest.mark.slow
def test_a_killed_run_with_linear_attention_resumes_and_is_reproduced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = WholeRun(
        tmp_path,
        algorithm={"kl_coefficient": 0.01},
        trainer={"num_steps": 6, "checkpoint_every_steps": 2},
    )
    shared = {"shared_expert_intermediate_size": 32}
    write_base_model(tmp_path / "model", num_experts=8, family="Qwen3Next", **shared, **LINEAR, **LAYERS)
    run.start()
    run.wait_for_step(2)
    run.kill(signal.SIGKILL)
    run.finish()
    assert run.start().finish(seconds=1200) == 0, run.output()
    steps = run.steps()
    assert steps[0]["mismatch_kl"] < 1e-8
    assert all(step["mismatch_kl"] is None or step["mismatch_kl"] < 1e-8 for step in steps)
    capfd.readouterr()
    assert cli.main(["reproduce", str(run.run_folder), "6"]) == 0
    assert "step 6 is identical to the last digit." in capfd.readouterr().out
