"""Whole trainer processes against a queue that hands out prepared batches."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import random_batch, reference_model, write_model
from fakes.queue_service import FakeQueueService
from fakes.recipes import make_recipe

from asyncrl.errors import Diverged
from asyncrl.model.folder import check_model_folder
from asyncrl.recipe.file import dump_recipe
from asyncrl.serving.publication import read_publication
from asyncrl.system.network import free_ports
from asyncrl.trainer.bootstrap import BAD_INPUT
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.parts.table import build_learner
from asyncrl.trainer.publishing.host_weights import digests_of
from sandbox.frames import readable

pytestmark = pytest.mark.usefixtures("forked_trainers")

NUM_STEPS = 4
TRAINER = {"num_steps": NUM_STEPS, "checkpoint_every_steps": 2, "warmup_steps": 2, "learning_rate": 1e-3}


@pytest.fixture
def queue() -> Iterator[FakeQueueService]:
    with FakeQueueService([random_batch(step) for step in range(NUM_STEPS)]) as queue:
        yield queue


@pytest.fixture(scope="module")
def straight(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeQueueService]:
    """An undisturbed run of one process: its folder, and what the queue heard."""
    run = tmp_path_factory.mktemp("straight") / "run"
    with FakeQueueService([random_batch(step) for step in range(NUM_STEPS)]) as queue:
        processes = start_trainer(run, queue.url, make_recipe(folder, trainer=TRAINER))
        assert finish_trainer(processes) == [0], read_log(run)
    return run, queue


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "checkpoints" / f"step-{NUM_STEPS}" / "hf" / "model.safetensors")


def assert_equal_weights(got: Path, wanted: Path) -> None:
    left, right = final_weights(got), final_weights(wanted)
    assert all(torch.equal(left[name], right[name]) for name in right) and left.keys() == right.keys()


def test_a_run_takes_every_step_once_and_reports_the_one_before(straight: tuple[Path, FakeQueueService]):
    run, queue = straight
    assert [take.version for take in queue.takes] == list(range(NUM_STEPS + 1))
    assert queue.takes[0].step_metrics is None and queue.takes[0].published == {}
    for take in queue.takes[1:]:
        assert take.step_metrics["step"] == take.version
        assert take.publication_folder == str(run / "publications" / f"v{take.version}")
        tokens = sum(len(s.response_tokens) for s in random_batch(take.version - 1).sequences)
        assert take.step_metrics["num_tokens"] == tokens
        assert ("checkpoint_seconds" in take.step_metrics) == (take.version % 2 == 0)


def test_each_take_tells_what_the_step_before_knew_of_the_tokens_of_four_groups(
    straight: tuple[Path, FakeQueueService],
):
    takes = straight[1].takes
    assert takes[0].trained_tokens == []
    for take in takes[1:]:
        sequences = random_batch(take.version - 1).sequences
        assert [each.trajectory_id for each in take.trained_tokens] == [s.sequence_id for s in sequences]
        sizes = [(len(each.log_ratios), len(each.entropies)) for each in take.trained_tokens]
        assert sizes == [(2 * len(s.response_tokens),) * 2 for s in sequences]


def test_every_metric_is_a_number(straight: tuple[Path, FakeQueueService]):
    metrics = straight[1].takes[1].step_metrics
    assert {"loss", "train_seconds", "mismatch_kl", "policy_kl", "staleness_kl_lag_1"} <= metrics.keys()
    assert all(isinstance(value, float) for value in metrics.values())


def test_each_commit_follows_a_durable_checkpoint(straight: tuple[Path, FakeQueueService]):
    run, queue = straight
    folders = [str(run / "checkpoints" / f"step-{version}") for version in (2, 4)]
    assert [commit.checkpoint_folder for commit in queue.commits] == folders
    assert [commit.version for commit in queue.commits] == [2, 4]


def test_the_last_version_is_published_and_exported_and_has_moved(
    straight: tuple[Path, FakeQueueService], folder: Path
):
    run, _ = straight
    publication = read_publication(run / "publications" / "v4")
    published = safetensors.torch.load_file(publication.folder / "model.safetensors")
    exported = dict(reference_model(run / "checkpoints" / "step-4" / "hf").named_parameters())
    base = dict(reference_model(folder).named_parameters())
    assert all(torch.equal(exported[name], published[name]) for name in published)
    assert all(not torch.equal(exported[name], base[name]) for name in base)


def test_a_killed_run_resumes_bit_for_bit(
    folder: Path, queue: FakeQueueService, straight: tuple[Path, FakeQueueService], tmp_path: Path
):
    # Killed when it asks for step 3: version 3 is lost, the checkpoint of version 2 is not.
    queue.hold(3)
    run = tmp_path / "run"
    processes = start_trainer(run, queue.url, make_recipe(folder, trainer=TRAINER))
    queue.wait_for_take(3)
    queue.wait_for_commit(2)
    processes[0].send_signal(signal.SIGKILL)
    finish_trainer(processes)
    queue.release()
    assert finish_trainer(start_trainer(run, queue.url)) == [0], read_log(run)
    assert [take.version for take in queue.takes] == [0, 1, 2, 3, 2, 3, 4]
    # The commit of version 2 is repeated: the crash might have come between the save and it.
    assert [commit.version for commit in queue.commits] == [2, 2, 4]
    assert_equal_weights(run, straight[0])


def test_a_drain_comes_before_each_publish_and_its_time_is_told(
    folder: Path, queue: FakeQueueService, tmp_path: Path
):
    run = tmp_path / "run"
    recipe = make_recipe(folder, trainer=TRAINER | {"num_steps": 2}, rollout={"interrupt": "drain"})
    assert finish_trainer(start_trainer(run, queue.url, recipe)) == [0], read_log(run)
    assert [drain.version for drain in queue.drains] == [1, 2]
    assert [take.version for take in queue.takes] == [0, 1, 2]
    assert all(take.step_metrics["drain_seconds"] > 0 for take in queue.takes[1:])


LAYOUTS = [{"num_processes": 1}, {"num_processes": 2}, {"num_processes": 1}]
"""Of the trainer section; a run goes through them in turn, each from the checkpoint of the one before."""


def test_a_run_changes_its_layout_at_every_restart(
    folder: Path, queue: FakeQueueService, straight: tuple[Path, FakeQueueService], tmp_path: Path
):
    run = tmp_path / "run"
    every_step = TRAINER | {"checkpoint_every_steps": 1}
    for number, layout in enumerate(LAYOUTS, 1):
        is_last = number == len(LAYOUTS)
        if not is_last:
            queue.hold(number)
        processes = start_trainer(run, queue.url, make_recipe(folder, trainer=every_step | layout))
        if not is_last:
            queue.wait_for_take(number)
            queue.wait_for_commit(number)
            for process in processes:
                process.kill()
        codes = finish_trainer(processes)
        queue.release()
        assert is_last == (codes == [0] * len(processes)), read_log(run)
    assert {take.version for take in queue.takes} == set(range(NUM_STEPS + 1))
    got, wanted = final_weights(run), final_weights(straight[0])
    assert max((got[name] - wanted[name]).abs().max().item() for name in wanted) < 1e-5


def test_the_best_on_heldout_tasks_is_kept_and_exported_beside_the_last(
    folder: Path, queue: FakeQueueService, straight: tuple[Path, FakeQueueService], tmp_path: Path
):
    run = tmp_path / "run"
    queue.heldout = {1: 0.25, 2: 0.75, 3: 0.5}
    recipe = make_recipe(
        folder,
        data={"heldout": "none.jsonl"},
        evaluation={"every_steps": 1},
        trainer=TRAINER | {"keep_best": True, "keep_checkpoints": 1},
    )
    assert finish_trainer(start_trainer(run, queue.url, recipe)) == [0], read_log(run)
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"heldout.json", "step-2", "step-4"}
    assert_equal_weights(run, straight[0])
    best = dict(reference_model(run / "checkpoints" / "step-2" / "hf").named_parameters())
    learner = build_learner(check_model_folder(folder), make_recipe(folder))
    Checkpoints(straight[0] / "checkpoints", num_kept=2).load(learner, 2)
    assert all(torch.equal(best[name], tensor) for name, tensor in export_weights(learner.model))


@pytest.mark.slow
@pytest.mark.parametrize("meeting", ["standalone", "master"])
def test_tensor_ranks_under_torchrun_make_the_same_weights_as_one(
    meeting: str,
    folder: Path,
    queue: FakeQueueService,
    straight: tuple[Path, FakeQueueService],
    tmp_path: Path,
):
    run = tmp_path / "run"
    run.mkdir()
    parallel = {"tensor": 2, "sequence_parallel": True, "distributed_optimizer": True}
    recipe = make_recipe(folder, trainer=TRAINER | {"num_processes": 2, "parallel": parallel})
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    if meeting == "standalone":
        command += ["--standalone"]
    else:
        command += ["--master-addr", "127.0.0.1", "--master-port", str(free_ports(1)[0])]
    command += ["-m", "asyncrl.trainer.main", "--run-folder", str(run), "--queue-url", queue.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [take.version for take in queue.takes] == list(range(NUM_STEPS + 1))
    assert [commit.version for commit in queue.commits] == [2, 4]
    got, wanted = final_weights(run), final_weights(straight[0])
    assert max((got[name] - wanted[name]).abs().max().item() for name in wanted) < 1e-4
    publication = read_publication(run / "publications" / "v4")
    published = safetensors.torch.load_file(publication.folder / "model.safetensors")
    assert publication.digests == digests_of(published)
    assert all(torch.equal(published[name], got[name]) for name in wanted)


def test_an_interrupt_leaves_the_end_to_the_controller_which_saves_commits_and_exports(
    folder: Path, queue: FakeQueueService, tmp_path: Path
):
    queue.hold(3)
    run = tmp_path / "run"
    (process,) = start_trainer(run, queue.url, make_recipe(folder, trainer=TRAINER))
    queue.wait_for_take(3)
    process.send_signal(signal.SIGINT)
    queue.batches = {}
    queue.release()
    assert finish_trainer([process]) == [0], read_log(run)
    assert [commit.version for commit in queue.commits] == [2, 3]
    assert (run / "checkpoints" / "step-3" / "hf" / "config.json").exists()


def test_a_trainer_dies_with_its_parent(folder: Path, queue: FakeQueueService, tmp_path: Path):
    queue.hold(0)
    (process,) = start_trainer(tmp_path / "run", queue.url, make_recipe(folder, trainer=TRAINER))
    queue.wait_for_take(0)
    trainer = os.pidfd_open(process.pid)
    process.orphan()
    assert readable(trainer, timeout_seconds=60) == [trainer], "the trainer outlived its parent by a minute"
    os.close(trainer)


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
