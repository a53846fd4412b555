"""Disks: real folders, and ones that refuse."""

from pathlib import Path

import pytest

from asyncrl.launch.doctor.disks import Trial, disk, try_folder
from asyncrl.launch.doctor.probe import State
from asyncrl.system.machine import Mount

PLENTY = 100 * 2**30
FINE = Trial()


def look(
    name: str, folder: Path, trial: Trial = FINE, *, free: int = PLENTY, kind: str = "ext4"
) -> list[State]:
    mount = Mount(Path("/"), kind, "/dev/sda1")
    found = disk(
        folder,
        holds_runs=name == "runs",
        attempt=lambda there: trial,
        free_bytes=lambda there: free,
        mounted=lambda there: mount,
    )
    return [finding.state for finding in found]


def test_a_folder_is_tried_with_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    trial = try_folder(tmp_path)
    assert (trial.refusal, trial.lock_refusal, trial.sync_refusal) == (None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_yet_is_tried_above(tmp_path: Path) -> None:
    (found,) = disk(tmp_path / "runs" / "one", free_bytes=lambda there: PLENTY)
    assert f"which will be made in {tmp_path}" in found.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("trial", "of_runs", "of_caches"),
    [
        (Trial(refusal="Read-only file system"), [State.BROKEN], [State.LOST]),
        (Trial(lock_refusal="No locks available"), [State.BROKEN], [State.LOST]),
        (Trial(sync_refusal="Invalid argument"), [State.LOST], [State.LOST]),
        (Trial(sync_seconds=2.0), [State.LOST], [State.OK]),
        (Trial(), [State.OK], [State.OK]),
    ],
)
def test_what_a_disk_refuses_matters_most_to_runs(
    tmp_path: Path, trial: Trial, of_runs: list[State], of_caches: list[State]
) -> None:
    assert look("runs", tmp_path, trial) == of_runs
    assert look("hub cache", tmp_path, trial) == of_caches


def test_little_space_is_lost_and_hardly_any_broken(tmp_path: Path) -> None:
    assert look("runs", tmp_path, free=2**30) == [State.LOST]
    assert look("runs", tmp_path, free=2**20) == [State.BROKEN]
    assert look("hub cache", tmp_path, free=2**20) == [State.LOST]


def test_network_and_memory_file_systems_are_named_where_runs_are(tmp_path: Path) -> None:
    for kind in ("nfs4", "fuse.sshfs", "tmpfs"):
        assert look("runs", tmp_path, kind=kind) == [State.LOST]
    assert look("hub cache", tmp_path, kind="nfs4") == [State.OK]
