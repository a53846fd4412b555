"""A whole run of a mixture of experts that trains with its servers' experts, killed and resumed."""

import signal
from pathlib import Path

import pytest
from fakes.base_model import write_base_model
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli

ROWS = """
SELECT trajectory_id, position, tokens, context, experts
FROM segments LEFT JOIN routes USING (trajectory_id, position)
"""
ROW_BYTES = 2 * 2
"""Two layers, two experts."""


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_experts_of_every_token(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = WholeRun(
        tmp_path,
        algorithm={"routing_replay": "rollout", "kl": {"coefficient": 0.01}},
        trainer={"num_steps": 4, "checkpoint_every_steps": 1},
    )
    write_base_model(tmp_path / "model", num_experts=8)
    run.start()
    run.wait_for_step(1)
    run.kill(signal.SIGKILL)
    run.finish()
    before = set(run.query(ROWS))
    assert run.start().finish(seconds=1200) == 0, run.output()
    rows = run.query(ROWS)
    assert before <= set(rows)
    prompts = dict(run.query("SELECT trajectory_id, length(prompt_tokens) / 4 FROM trajectories"))
    for name, position, tokens, context, experts in rows:
        assert len(experts) == len(tokens) // 4 * ROW_BYTES, (name, position)
        assert len(context) == (0 if position else (prompts[name] - 1) * ROW_BYTES), (name, position)
        assert max(experts) < 8
    steps = run.steps()
    # Nothing is stale in the first step: both engines would choose the same, in float32.
    assert steps[0]["routing_mismatch"] < 0.01 < steps[-1]["routing_mismatch"]
    assert steps[0]["mismatch_kl"] < 1e-9
    # A prefix that another version continues after the kill keeps the experts of the first, where the server
    # took its own.
    assert all(step["mismatch_kl"] is None or step["mismatch_kl"] < 1e-5 for step in steps)
    capfd.readouterr()
    assert cli.main(["reproduce", str(run.run_folder), "4"]) == 0
    assert "step 4 is identical to the last digit." in capfd.readouterr().out
