"""Disks that a run writes to: free space, locks, durable writes, network file systems."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from asyncrl.launch.doctor.probe import Finding, broken, lost, ok
from asyncrl.system.machine import Mount, mount_of

LEAST_BYTES = 200 * 2**20
"""`asyncrl check` refuses a run folder with less."""
FEW_BYTES = 5 * 2**30
"""A checkpoint of the smallest language model, with what is written beside it."""
SLOW_SECONDS = 0.25
ELSEWHERE = "set HF_HOME or XDG_CACHE_HOME to another disk."
NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "afs"),
    *("wekafs", "panfs", "orangefs", "pvfs2", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse"),
    *("fuse.juicefs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.goofys", "fuse.blobfuse2"),
)
VOLATILE = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Trial:
    """The answers of a folder to a file of the doctor's own."""

    refusal: str | None = None
    """Why nothing could be written."""
    lock_refusal: str | None = None
    sync_refusal: str | None = None
    sync_seconds: float = 0.0


def try_folder(folder: Path) -> Trial:
    """Writes, locks and syncs a file there, and removes it."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".asyncrl-doctor-", dir=folder)
    except OSError as error:
        return Trial(refusal=error.strerror)
    lock_refusal = sync_refusal = None
    began = time.monotonic()
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock_refusal = error.strerror or errno.errorcode.get(error.errno or 0, "refused")
        try:
            os.write(descriptor, bytes(4096))
            began = time.monotonic()
            os.fsync(descriptor)
        except OSError as error:
            sync_refusal = error.strerror
        return Trial(None, lock_refusal, sync_refusal, time.monotonic() - began)
    finally:
        os.close(descriptor)
        os.unlink(name)


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def disk(
    folder: Path,
    *,
    holds_runs: bool = False,
    attempt: Callable[[Path], Trial] = try_folder,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    mounted: Callable[[Path], Mount | None] = mount_of,
) -> Iterator[Finding]:
    """A folder, or the nearest one above that exists."""
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    place = f"{folder}" if there == folder else f"{folder}, which will be made in {there}"
    trial, mount = attempt(there), mounted(there)
    if trial.refusal is not None:
        tell = broken if holds_runs else lost
        yield tell(
            f"{place}: {trial.refusal}",
            "No run can be written there." if holds_runs else "What is fetched or made is not kept there.",
            "Free space or correct the permissions; "
            + ("set run_folder to another disk." if holds_runs else ELSEWHERE),
        )
        return
    free, kind = free_bytes(there), mount.kind if mount is not None else "unknown"
    findings = [
        *_space(place, free, holds_runs=holds_runs),
        *_trial(place, trial, holds_runs=holds_runs),
        *_kind(place, kind, holds_runs=holds_runs),
    ]
    shown = f"{place}: {_size(free)} free, {kind}, flock and fsync work ({_time(trial.sync_seconds)})"
    yield from findings or [ok(shown)]


def _space(place: str, free: int, *, holds_runs: bool) -> Iterator[Finding]:
    if free >= FEW_BYTES:
        return
    found = f"{place}: {_size(free)} free"
    fix = "Free space, or " + (
        "set run_folder to another disk." if holds_runs else "move it: HF_HOME for the hub's, XDG_CACHE_HOME."
    )
    if holds_runs and free < LEAST_BYTES:
        yield broken(found, "`asyncrl check` refuses any run: a journal has no room.", fix)
    else:
        yield lost(
            found,
            "Only small models fit: a checkpoint has about 20 bytes per parameter, and three are kept."
            if holds_runs
            else "Larger models and data sets are not fetched whole.",
            fix,
        )


def _trial(place: str, trial: Trial, *, holds_runs: bool) -> Iterator[Finding]:
    fix = "Mount it with locks (NFS: without nolock; Lustre: flock)" + (
        ", or set run_folder to a local disk." if holds_runs else f", or {ELSEWHERE}"
    )
    if trial.lock_refusal is not None:
        tell = broken if holds_runs else lost
        yield tell(
            f"{place}: flock fails ({trial.lock_refusal})",
            "A run cannot lock its folder, nor SQLite its journal: it ends as it starts."
            if holds_runs
            else "Two processes that fetch the same may damage it.",
            fix,
        )
    if trial.sync_refusal is not None:
        yield lost(
            f"{place}: fsync fails ({trial.sync_refusal})",
            "What a run has written may be gone after a power failure.",
            "Set run_folder to a disk that syncs." if holds_runs else "Use another disk for caches.",
        )
    elif holds_runs and trial.sync_seconds > SLOW_SECONDS:
        yield lost(
            f"{place}: fsync takes {_time(trial.sync_seconds)}",
            "The journal syncs what it writes: streams wait for it, and batches come later.",
            "Run again when the disk is idle; set run_folder to a local disk if it stays slow.",
        )


def _kind(place: str, kind: str, *, holds_runs: bool) -> Iterator[Finding]:
    if not holds_runs:
        return
    if kind in NETWORK:
        yield lost(
            f"{place}: a network file system ({kind})",
            "The journal (SQLite) and its locks depend on the server: a run is slower, and ends when the "
            "server is out of reach.",
            "Set run_folder to a local disk; machines need no shared one (cluster.shared_disk: false).",
        )
    elif kind in VOLATILE:
        yield lost(
            f"{place}: in memory ({kind})",
            "Runs take memory away from their own processes, and are gone after a restart of the machine.",
            "Set run_folder to a disk for runs that are to be kept.",
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
