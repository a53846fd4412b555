"""A trainer whose gradient is no number: it ends with a sentence, before it publishes or saves anything."""

import dataclasses
import math
from pathlib import Path

import pytest
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import random_batch, write_model
from fakes.queue_service import QueueService
from fakes.recipes import make_recipe

from asyncrl.errors import Diverged

pytestmark = pytest.mark.usefixtures("forked_trainers")


def test_the_trainer_ends_with_the_hint_and_no_traceback(tmp_path: Path):
    run, good, bad = tmp_path / "run", random_batch(0), random_batch(1)
    poisoned = [dataclasses.replace(bad.sequences[0], advantage=math.inf), *bad.sequences[1:]]
    recipe = make_recipe(write_model(tmp_path / "model"), trainer={"num_steps": 2, "learning_rate": 1e-3})
    with QueueService([good, dataclasses.replace(bad, sequences=poisoned)]) as queue:
        assert finish_trainer(start_trainer(run, queue.url, recipe)) == [Diverged.EXIT_CODE], read_log(run)
    log = read_log(run)
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if line.startswith("Diverged: ")]
    assert line.startswith("Diverged: Lower trainer.learning_rate, which is 0.001")
    assert "of step 2 is" in line
    # Neither the servers nor a checkpoint ever see such weights.
    assert sorted(path.name for path in (run / "publications").iterdir()) == ["v0", "v1"]
    assert not list((run / "checkpoints").glob("step-*"))
