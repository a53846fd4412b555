"""A whole run whose verifier hangs after the trial at the start."""

import signal
from pathlib import Path

import pytest
from fakes.processes import wait_for_end
from fakes.whole_run import WholeRun

pytestmark = pytest.mark.exhaustive

BROKEN = """
import time
from pathlib import Path

from verifiers.verdict import Outcome, Verdict


class Sevens:
    def parse_reference(self, raw):
        return raw

    def verify(self, response, reference):
        if not Path(__file__).with_name("broken").exists():
            return Verdict(Outcome.WRONG, 0.0)
        time.sleep(1000)

    {more}
"""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="in a worker"),
        pytest.param("verify_fast = verify", id="in its fast path", marks=pytest.mark.slow),
    ],
)
def test_sigterm_ends_a_run_whose_verifier_hangs_within_seconds(
    more: str, tmp_path: Path, elsewhere: dict[str, list[str]]
) -> None:
    run = WholeRun(tmp_path, serving=elsewhere, trainer={"num_steps": 100}, rollout={"groups_per_batch": 4})
    (tmp_path / "sevens.py").write_text(BROKEN.format(more=more))
    run.start()
    # The trial is over when the controller listens.
    run.wait_for(lambda: (run.run_folder / "controller.url").is_file(), "the controller")
    (tmp_path / "broken").touch()
    graded = "SELECT count(*) FROM trajectories WHERE finish IS NOT NULL AND outcome IS NULL"
    run.wait_for(lambda: run.query(graded)[0][0] > 0, "a response that waits for its verdict")
    family = run.family()
    run.kill(signal.SIGTERM)
    # After 9 seconds of its own; the verifier would hang for 1000.
    assert run.finish(seconds=60.0) == 130, run.output()
    assert not wait_for_end(family)
    # What was generated waits for a verifier that works; the schedules of the simulation resume so.
    assert run.query(graded)[0][0] > 0
