"""A run that resumes on another number of ranks, divided and recomputed otherwise."""

from pathlib import Path

import pytest
from fakes.whole_run import WholeRun


@pytest.mark.slow
def test_a_run_resumes_from_its_checkpoint_in_another_layout(tmp_path: Path) -> None:
    run = WholeRun(tmp_path, trainer={"num_steps": 4, "checkpoint_every_steps": 2}).start()
    assert run.finish() == 0, run.output()
    run.set("trainer.num_steps", 8)
    run.set("trainer.num_processes", 2)
    run.set("trainer.parallel", {"tensor": 2, "sequence_parallel": True})
    run.set("trainer.recompute", "full")
    run.start()
    assert run.finish() == 0, run.output()
    assert (run.run_folder / "logs" / "trainer-1.log").is_file()
    assert [row["step"] for row in run.steps()] == list(range(1, 9))
    # Steps are counted from the checkpoint, and what was learned stayed.
    correct = [row["correct_mean"] for row in run.steps()]
    assert min(correct[4:]) > correct[0], correct
    # On to two pipeline stages, from a checkpoint of two tensor ranks.
    run.set("trainer.num_steps", 10)
    run.set("trainer.parallel", {"pipeline": 2})
    run.start()
    assert run.finish() == 0, run.output()
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"]
    assert [row["step"] for row in run.steps()] == list(range(1, 11))
    # And to data-parallel ranks that divide the optimizer's state.
    run.set("trainer.num_steps", 12)
    run.set("trainer.parallel", {"distributed_optimizer": True})
    run.start()
    assert run.finish() == 0, run.output()
    assert [row["step"] for row in run.steps()] == list(range(1, 13))
