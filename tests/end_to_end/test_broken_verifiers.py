"""Whole runs whose verifier breaks after the trial at the start: they end, and say why."""

import functools
import re
import signal
from collections.abc import Callable
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
        {how}

    {more}
"""


@pytest.fixture
def broken_run(tmp_path: Path, elsewhere: dict[str, list[str]]) -> Callable[..., WholeRun]:
    return functools.partial(start_and_break, tmp_path, elsewhere)


def start_and_break(
    folder: Path, serving: dict[str, list[str]], how: str, more: str = "", **verifying: float
) -> WholeRun:
    run = WholeRun(
        folder,
        serving=serving,
        trainer={"num_steps": 100},
        rollout={"groups_per_batch": 4},
        verifying=verifying,
    )
    (folder / "sevens.py").write_text(BROKEN.format(how=how, more=more))
    run.start()
    # The trial is over when the controller listens.
    run.wait_for(lambda: (run.run_folder / "controller.url").is_file(), "the controller")
    (folder / "broken").touch()
    return run


@pytest.mark.slow
def test_a_verifier_that_always_raises_ends_the_run_with_its_words(
    broken_run: Callable[..., WholeRun],
) -> None:
    run = broken_run("raise LookupError('no such judge')")
    assert run.finish(seconds=120.0) == 1, run.output()
    output = run.output()
    assert "Traceback" not in output
    # Told when it happened first, with its row, and again as what ended the run.
    first, *_, last = [line for line in output.splitlines() if "LookupError: no such judge" in line]
    # The first broken one may be of the evaluation before training.
    assert re.search(
        'no verdict of the verifier "./sevens.py:Sevens" on a response to (train|heldout):', first
    )
    assert "VerifierFailed" in last and "verifying.max_faults_in_a_row" in last and "sevens.py:15)" in last


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="in a worker"),
        pytest.param("verify_fast = verify", id="in its fast path", marks=pytest.mark.slow),
    ],
)
def test_sigterm_ends_a_run_whose_verifier_hangs_within_seconds(
    broken_run: Callable[..., WholeRun], more: str
) -> None:
    run = broken_run("time.sleep(1000)", more)
    graded = "SELECT count(*) FROM trajectories WHERE finish IS NOT NULL AND outcome IS NULL"
    run.wait_for(lambda: run.query(graded)[0][0] > 0, "a response that waits for its verdict")
    family = run.family()
    run.kill(signal.SIGTERM)
    # After 9 seconds of its own; the verifier would hang for 1000.
    assert run.finish(seconds=60.0) == 130, run.output()
    assert not wait_for_end(family)
    # What was generated waits for a verifier that works: the same command resumes.
    (finished,) = run.query("SELECT count(*) FROM trajectories WHERE finish IS NOT NULL")
    (run.folder / "broken").unlink()
    run.set("trainer.num_steps", 1)
    assert run.start().finish() == 0, run.output()
    assert run.query("SELECT count(*) FROM trajectories WHERE finish IS NOT NULL") >= [finished]


@pytest.mark.slow
def test_a_verifier_that_dies_on_some_responses_makes_none_of_them_wrong_and_is_told(
    broken_run: Callable[..., WholeRun],
) -> None:
    more = """
    def _dies(self, response, reference):
        from verifiers.verdict import correct
        import os
        if sum(map(ord, response)) % 4 == 0:
            os._exit(1)
        return correct()
    """
    run = broken_run("return self._dies(response, reference)", more)
    faults = "SELECT count(*) FROM trajectories WHERE outcome = 'fault'"
    run.wait_for(lambda: run.query(faults)[0][0] > 3, "some faults")
    run.kill(signal.SIGTERM)
    assert run.finish(seconds=120.0) == 130, run.output()
    details = run.query("SELECT DISTINCT detail FROM trajectories WHERE outcome = 'fault'")
    assert details == [("the worker ended by itself, with exit code 1",)]
    ((wrong,),) = run.query(
        "SELECT count(*) FROM trajectories WHERE outcome = 'wrong' AND detail LIKE '%worker%'"
    )
    assert wrong == 0
    assert "the worker ended by itself, with exit code 1" in run.output()


@pytest.mark.slow
def test_a_wait_for_a_verifier_is_named_while_it_lasts(broken_run: Callable[..., WholeRun]) -> None:
    run = broken_run("time.sleep(1000)", "verify_fast = verify", timeout_seconds=1000.0)
    run.wait_for(lambda: 'waiting for the verifier "./sevens.py:Sevens"' in run.output(), "the words")
    run.kill(signal.SIGTERM)
    assert run.finish(seconds=60.0) == 130, run.output()
