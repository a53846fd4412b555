"""A trainer whose gradient or own term is no number: it ends with a sentence before it publishes or saves."""

import dataclasses
import math
from pathlib import Path

import pytest
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import random_batch, write_model
from fakes.queue_service import FakeQueueService
from fakes.recipes import make_recipe

from asyncrl.errors import Diverged
from asyncrl.trainer.bootstrap import BAD_INPUT

pytestmark = pytest.mark.usefixtures("forked_trainers")


def test_the_trainer_ends_with_the_hint_and_no_traceback(tmp_path: Path):
    run, good, bad = tmp_path / "run", random_batch(0), random_batch(1)
    poisoned = [dataclasses.replace(bad.sequences[0], advantage=math.inf), *bad.sequences[1:]]
    recipe = make_recipe(write_model(tmp_path / "model"), trainer={"num_steps": 2, "learning_rate": 1e-3})
    with FakeQueueService([good, dataclasses.replace(bad, sequences=poisoned)]) as queue:
        assert finish_trainer(start_trainer(run, queue.url, recipe)) == [Diverged.EXIT_CODE], read_log(run)
    log = read_log(run)
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if line.startswith("Diverged: ")]
    assert line.startswith("Diverged: Lower trainer.learning_rate, which is 0.001")
    assert "of step 2 is" in line
    # Neither the servers nor a checkpoint ever see such weights.
    assert sorted(path.name for path in (run / "publications").iterdir()) == ["v0", "v1"]
    assert not list((run / "checkpoints").glob("step-*"))


OWN = """
import torch

def weight(inputs, algorithm):
    return torch.where(inputs.behavior < -500, {odd}, torch.ones_like(inputs.proximal))
"""


def test_both_ranks_name_the_trajectory_and_a_mended_term_trains_the_same_batches(tmp_path: Path):
    run, good, bad = tmp_path / "run", random_batch(0), random_batch(1)
    odd = bad.sequences[5]
    changed = dataclasses.replace(odd, behavior_logprobs=[-999.0] * len(odd.behavior_logprobs))
    batches = [good, dataclasses.replace(bad, sequences=[*bad.sequences[:5], changed, *bad.sequences[6:]])]
    own = tmp_path / "own.py"
    own.write_text(OWN.format(odd="float('nan')"))
    recipe = make_recipe(
        write_model(tmp_path / "model"),
        algorithm={"importance_weight": f"{own}:weight"},
        trainer={"num_steps": 2, "num_processes": 2},
    )
    with FakeQueueService(batches) as queue:
        codes = finish_trainer(start_trainer(run, queue.url, recipe))
        assert codes == [BAD_INPUT, BAD_INPUT], read_log(run)
        for rank in (0, 1):
            log = (run / f"trainer-{rank}.log").read_text()
            assert "Traceback" not in log
            assert f"weight gave nan at {len(odd.response_tokens)} token(s) of a micro-batch" in log
            assert f"first in the trajectory {odd.sequence_id}" in log
        assert sorted(path.name for path in (run / "publications").iterdir()) == ["v0", "v1"]
        own.write_text(OWN.format(odd="0.5"))
        assert finish_trainer(start_trainer(run, queue.url, recipe)) == [0, 0], read_log(run)
    assert [commit.version for commit in queue.commits] == [2]
