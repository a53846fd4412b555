import errno
import hashlib
import json
import logging
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch
from fakes.template import Template
from torch.distributed.checkpoint import FileSystemWriter

from asyncrl.errors import DiskError, QueueError
from asyncrl.run.checkpoints import find_fault, saved_versions
from asyncrl.trainer.checkpoints import checkpoint, checkpoint_files, training_state
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.checkpoints.checkpoint_files import HashedFiles
from asyncrl.trainer.step.learner import Learner


def warming_learner(folder: Path, dtype: str = "float32") -> Learner:
    trainer = {"warmup_steps": 3, "weight_decay": 0.1, "learning_rate": 1e-3}
    if dtype == "float16":
        # Doubled by the fourth step, the second after the checkpoint.
        trainer |= {"initial_loss_scale": 64.0, "loss_scale_growth_steps": 4}
    return make_learner(folder, trainer=trainer, model={"dtype": dtype})


def train(learner: Learner, first: int, last: int) -> list[dict[str, float]]:
    return [learner.step(random_batch(step)) for step in range(first, last)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_restored_learner_continues_bit_for_bit(folder: Path, tmp_path: Path, dtype: str):
    straight = warming_learner(folder, dtype)
    wanted = train(straight, 0, 5)
    scales = [64.0] * 3 + [128.0] * 2 if dtype == "float16" else [None] * 5
    assert [metrics.get("loss_scale") for metrics in wanted] == scales
    first = warming_learner(folder, dtype)
    train(first, 0, 2)
    checkpoints = Checkpoints(tmp_path, num_kept=2)
    checkpoints.save(first, 2)
    again = warming_learner(folder, dtype)
    assert checkpoints.load_newest(again) == 2
    assert train(again, 2, 5) == wanted[2:]
    got = copy_weights(again.model)
    assert all(torch.equal(got[name], tensor) for name, tensor in copy_weights(straight.model).items())


def test_a_second_save_fills_the_memory_of_the_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=2)
    train(learner, 0, 1)
    checkpoints.save(learner, 1)
    monkeypatch.setattr(training_state, "empty_on_host", lambda like: pytest.fail("more memory was taken"))
    wanted = train(learner, 1, 2)
    checkpoints.save(learner, 2)
    again = warming_learner(folder)
    assert checkpoints.load_newest(again) == 2
    assert train(again, 2, 3) == train(learner, 2, 3) and wanted


def test_a_manifest_costs_no_second_reading(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=2)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("a file was read"))
    path = checkpoints.save(learner, 1)
    monkeypatch.undo()
    assert find_fault(path) is None


def test_the_random_state_comes_back(folder: Path, tmp_path: Path):
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=1)
    train(learner, 0, 1)
    checkpoints.save(learner, 1)
    wanted = torch.rand(3)
    torch.manual_seed(99)
    checkpoints.load_newest(learner)
    assert torch.equal(torch.rand(3), wanted)


def test_without_any_checkpoint_the_base_model_is_loaded(folder: Path, tmp_path: Path):
    base, learner = copy_weights(warming_learner(folder).model), warming_learner(folder)
    train(learner, 0, 1)
    assert Checkpoints(tmp_path / "none", num_kept=2).load_newest(learner) == 0
    assert all(torch.equal(base[name], tensor) for name, tensor in copy_weights(learner.model).items())


def test_the_newest_ones_are_kept_and_the_order_is_by_number(folder: Path, tmp_path: Path):
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=2)
    train(learner, 0, 1)
    for version in (8, 9, 10, 11):
        checkpoints.save(learner, version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11"]
    assert checkpoints.newest() == 11


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest"])
def test_a_damaged_checkpoint_is_skipped_and_named(
    folder: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=2)
    train(learner, 0, 1)
    checkpoints.save(learner, 1)
    newest = checkpoints.save(learner, 2)
    file = newest / ("checkpoint.json" if damage == "manifest" else "__0_0.distcp")
    content = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    with caplog.at_level(logging.WARNING):
        assert checkpoints.load_newest(learner) == 1
    assert f"skipping checkpoint {newest}: " in caplog.text
    assert find_fault(newest) is not None


def test_a_manifest_names_the_version_and_every_file(folder: Path, tmp_path: Path):
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=2)
    train(learner, 0, 1)
    path = checkpoints.save(learner, 1)
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert manifest["version"] == 1
    assert {*manifest["files"], "checkpoint.json"} == {file.name for file in path.iterdir()}


@pytest.mark.parametrize("moment", ["half", "sync_tree"])
def test_a_kill_while_saving_keeps_the_checkpoint_before(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, template: Template, moment: str
):
    log = tmp_path_factory.mktemp("log") / "log"
    with log.open("wb") as output:
        saver = template.start(
            "fakes.dying_saver",
            [str(folder), str(tmp_path), moment],
            environment=dict(os.environ),
            output=output,
        )
    assert saver.wait(120) == -signal.SIGKILL, log.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".step-2.part", "step-1"]
    learner, checkpoints = warming_learner(folder), Checkpoints(tmp_path, num_kept=2)
    assert checkpoints.load_newest(learner) == 1
    train(learner, 1, 2)
    checkpoints.save(learner, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def test_training_continues_while_a_checkpoint_is_written_and_it_holds_what_was_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    straight, learner = warming_learner(folder), warming_learner(folder)
    wanted = train(straight, 0, 3)
    may_write, committed, write = threading.Event(), [], checkpoint_files.write

    def held_write(*arguments, **keywords):
        assert may_write.wait(60)
        return write(*arguments, **keywords)

    monkeypatch.setattr(checkpoint_files, "write", held_write)
    checkpoints = Checkpoints(
        tmp_path, num_kept=2, committed=lambda version, path: committed.append((version, path.exists()))
    )
    metrics = train(learner, 0, 1)
    checkpoints.begin(learner, 1)
    metrics += train(learner, 1, 3)
    assert committed == [] and checkpoints.newest() == 0
    may_write.set()
    checkpoints.wait()
    assert committed == [(1, True)]
    assert metrics == wanted
    again = warming_learner(folder)
    assert checkpoints.load_newest(again) == 1
    assert train(again, 1, 3) == wanted[1:]


def test_in_the_foreground_a_save_holds_no_copy_and_is_committed_on_return(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    straight, learner = warming_learner(folder), warming_learner(folder)
    wanted = train(straight, 0, 3)
    metrics = train(learner, 0, 1)
    committed = []
    # Nothing else allocates host memory for a copy.
    monkeypatch.setattr(training_state, "empty_on_host", lambda like: pytest.fail("a copy was made"))
    checkpoints = Checkpoints(
        tmp_path,
        num_kept=2,
        saves_in_background=False,
        committed=lambda version, path: committed.append((version, path.exists())),
    )
    checkpoints.begin(learner, 1)
    assert committed == [(1, True)] and checkpoints.newest() == 1
    metrics += train(learner, 1, 3)
    assert metrics == wanted
    again = warming_learner(folder)
    assert checkpoints.load_newest(again) == 1
    assert train(again, 1, 3) == wanted[1:]


def test_a_failed_save_is_raised_in_training_and_costs_neither_disk_nor_the_one_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learner, committed = warming_learner(folder), []
    train(learner, 0, 1)
    checkpoints = Checkpoints(tmp_path, num_kept=1, committed=lambda version, _: committed.append(version))
    checkpoints.save(learner, 1)

    class FullDisk(FileSystemWriter):
        def write_data(self, *_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_files, "FileSystemWriter", FullDisk)
    checkpoints.begin(learner, 2)
    with pytest.raises(DiskError, match=r"\(rank 0: OSError: .*No space left.*before it is intact"):
        checkpoints.wait()
    with pytest.raises(DiskError, match=r"\.step-2\.part"):
        checkpoints.begin(learner, 3)
    with pytest.raises(DiskError):
        checkpoints.check()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"] and committed == [1]
    assert checkpoints.newest() == 1


def test_ranks_without_a_common_disk_are_told_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Elsewhere(HashedFiles):
        def rename(self, path, new_path):
            super().rename(path, new_path)
            self.digests["__1_0.distcp"] = "of a rank with another disk"

    monkeypatch.setattr(checkpoint_files, "HashedFiles", Elsewhere)
    checkpoints = Checkpoints(tmp_path, num_kept=1)
    with pytest.raises(checkpoint.CheckpointError, match=r"__1_0\.distcp are not on .*run_folder"):
        checkpoints.save(warming_learner(folder), 1)
    assert saved_versions(tmp_path) == []


def test_a_refused_commit_fails_the_save(folder: Path, tmp_path: Path):
    def refuse(version: int, path: Path) -> None:
        raise QueueError("the queue says no")

    checkpoints = Checkpoints(tmp_path, num_kept=1, committed=refuse)
    with pytest.raises(checkpoint.CheckpointError, match="the queue says no"):
        checkpoints.save(warming_learner(folder), 1)


def test_the_best_is_kept_and_found_and_a_damaged_one_is_not_the_best(folder: Path, tmp_path: Path):
    learner = warming_learner(folder)
    checkpoints = Checkpoints(tmp_path, num_kept=1, best_of_every=1)
    train(learner, 0, 1)
    for version, accuracy in ((1, 0.2), (2, 0.9), (3, 0.5), (4, 0.4)):
        checkpoints.save(learner, version)
        checkpoints.heldout.add({version: accuracy})
    checkpoints.save(learner, 5)
    assert saved_versions(tmp_path) == [2, 5] and checkpoints.best() == 2
    (tmp_path / "step-2" / "__0_0.distcp").write_bytes(b"")
    assert checkpoints.best() is None
