"""A whole run that is stopped while what it trained is evaluated: the same command makes what is missing."""

import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.whole_run import WholeRun

from asyncrl.journal.reader import JournalReader
from asyncrl.journal.starts import RunEnd, recorded_end
from asyncrl.run.metrics_file import written_rows
from asyncrl.run.status import read_status


def evaluations(run: WholeRun) -> list[tuple[str, int]]:
    rows = written_rows(run.run_folder / "metrics.jsonl")
    return [(row["when"], row["step"]) for row in rows if row["kind"] == "eval"]


def state_of(run: WholeRun) -> str:
    status = read_status(run.run_folder)
    assert status is not None
    return status["state"]


@pytest.mark.slow
def test_a_stop_during_the_last_evaluation_is_made_good_by_the_same_command(
    tmp_path: Path, elsewhere: dict[str, Any]
) -> None:
    asked = {"samples_per_task": 512}
    steps = {"num_steps": 4, "checkpoint_every_steps": 2}
    run = WholeRun(tmp_path, serving=elsewhere, trainer=steps, evaluation=asked).start()
    log = run.run_folder / "logs" / "trainer-0.log"
    run.wait_for(lambda: log.exists() and "done: version 4" in log.read_text(), "the end of training")
    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    assert evaluations(run) == [("before", 0)] and state_of(run) == "stopped"
    num_segments = run.query("SELECT count(*) FROM segments")
    assert run.start().finish() == 0, run.output()
    assert evaluations(run) == [("before", 0), ("after", 4)] and state_of(run) == "finished"
    assert run.query("SELECT count(*) FROM segments") == num_segments
    journal = JournalReader(run.run_folder / "journal.sqlite")
    assert recorded_end(journal) == RunEnd(version=4, reason="num_steps")
    assert run.start().finish() == 0
    assert "is complete. Raise trainer.num_steps" in run.output()
    assert evaluations(run) == [("before", 0), ("after", 4)]
