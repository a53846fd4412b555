"""A whole run that samples from some tokens only, killed and resumed: no token without its kept set, the
trainer's log-probs are the servers', and a step is reproduced."""

import signal
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli
from asyncrl.journal.packing import unpack_logprobs
from asyncrl.model.kept_sets import num_kept_sets, split_kept_sets

ROWS = """
SELECT trajectory_id, position, tokens, logprobs, kept
FROM segments LEFT JOIN kept_sets USING (trajectory_id, position)
"""


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_kept_sets_of_every_token(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rollout = {"top_p": 0.9, "top_k": 20, "min_p": 0.05}
    run = WholeRun(tmp_path, rollout=rollout, algorithm={"kl_coefficient": 0.01}).start()
    run.wait_for_step(3)
    run.kill(signal.SIGKILL)
    run.finish()
    before = set(run.query(ROWS))
    assert run.start().finish() == 0, run.output()
    rows = run.query(ROWS)
    assert before <= set(rows)
    for name, position, tokens, logprobs, kept in rows:
        assert num_kept_sets(kept) == len(tokens) // 4, (name, position)
        for logprob, each in zip(unpack_logprobs(logprobs), split_kept_sets(kept), strict=True):
            # A token that was certain has one byte.
            assert each != b"\0" or logprob == 0.0
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"]
    steps = run.steps()
    assert steps[0]["mismatch_logprob_max"] < 1e-4
    assert all(row["mismatch_kl"] is None or row["mismatch_kl"] < 1e-8 for row in steps)
    assert steps[-1]["reward_mean"] > steps[0]["reward_mean"]
    capfd.readouterr()
    assert cli.main(["reproduce", str(run.run_folder), "12"]) == 0
    assert "step 12 is identical to the last digit." in capfd.readouterr().out
