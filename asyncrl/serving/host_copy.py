"""The weights of one version in a folder on a server's host, which deltas change into the next version.

The copy is what its bytes are, not what it was told: a delta applies to tensors with the digests that it
names, and its result counts once it has the digests that it promises. No torch.
"""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from asyncrl.model.weights import read_header, weight_files
from asyncrl.serving.delta import (
    DeltaRefused,
    Words,
    bytes_digest,
    decode,
    read_changes,
    read_manifest,
    word_type,
)
from asyncrl.serving.publication import DELTA
from asyncrl.wire.file_service import is_url

PREFIX = "asyncrl-weights-"
_LOCK = "lock"
WORD_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


class HostCopy:
    """Owns a folder. One call at a time."""

    def __init__(self, folder: Path, *, fetch: Callable[[str, Path], object]) -> None:
        """`fetch` leaves the folder at a URL in another."""
        self.folder = folder
        self._fetch = fetch
        self.current: Path | None = None
        """The folder of the copy, whatever its bytes are."""
        self._why_none = "none was made"
        """Why there is no copy, if there is none."""
        self._place = ""
        """Place that the copy was last prepared from, until it is taken."""
        self._tensors: dict[str, Words] = {}
        """The bytes in the files, mapped when they are first asked for."""
        self._digests: dict[str, str] = {}
        """Digests of tensors, as far as they were asked for since the bytes were written."""

    def take(self, place: str) -> Path | None:
        """The copy, if it was prepared from `place` last and not taken since: a later folder at that place
        may have other bytes."""
        is_prepared = place == self._place
        self._place = ""
        return self.current if is_prepared else None

    def prepare(self, place: str) -> None:
        """Makes the copy the version at `place`, a path or URL of a folder with weights or a delta.

        Weights at a path that no copy can be made of, as where the disk is full, are to be read from there.
        Raises DeltaRefused for a delta that does not fit, and OSError and FetchFailed.
        """
        self._place = ""
        name = place.rpartition("/")[2]
        if name.endswith(DELTA):
            self._apply(self._brought(place, self.folder / "delta"), name.removesuffix(DELTA))
        else:
            self._replace(place, name)
        if self.current is not None:
            self._place = place

    def _brought(self, place: str, target: Path) -> Path:
        """Where the folder at `place` can be read."""
        if not is_url(place):
            return Path(place)
        shutil.rmtree(target, ignore_errors=True)
        self._fetch(place, target)
        return target

    def _replace(self, place: str, name: str) -> None:
        self.current, self._tensors, self._digests = None, {}, {}
        target = self.folder / name
        for other in self.folder.iterdir():
            # There may be no room for two. A fetch that broke off is resumed.
            if other != target or not is_url(place):
                shutil.rmtree(other)
        if is_url(place):
            self._fetch(place, target)
        else:
            try:
                target.mkdir()
                for file in Path(place).iterdir():
                    shutil.copyfile(file, target / file.name)
            except OSError as error:
                shutil.rmtree(target, ignore_errors=True)
                self._why_none = f"{error}. Set TMPDIR of the server, or serving.weight_encoding to full"
                return
        self.current = target

    def _apply(self, delta: Path, name: str) -> None:
        if self.current is None:
            raise DeltaRefused(f"no copy of the version before on this host: {self._why_none}")
        wanted = read_manifest(delta)
        found = {tensor: self._digest(tensor) for tensor in wanted}
        if all(found[tensor] == digest for tensor, (_, digest) in wanted.items()):
            # It came twice.
            return self._rename(name)
        other = [tensor for tensor, (base, _) in wanted.items() if found[tensor] != base]
        if other:
            raise DeltaRefused(
                f"the copy on this host is not the version before: {len(other)} of {len(wanted)} tensors "
                f"differ, first {other[0]} ({found[other[0]]}, expected {wanted[other[0]][0]})"
            )
        for tensor, data in read_changes(delta):
            words = self._words(tensor)
            positions, changes = decode(data, num_words=len(words), kind=words.dtype)
            self._digests.pop(tensor, None)
            words[positions] ^= changes
        if wrong := [tensor for tensor, (_, digest) in wanted.items() if self._digest(tensor) != digest]:
            raise DeltaRefused(f"{len(wrong)} tensors are not those of the new version, first {wrong[0]}")
        self._rename(name)

    def _digest(self, tensor: str) -> str:
        if tensor not in self._digests:
            self._digests[tensor] = bytes_digest(self._words(tensor).view(np.uint8))
        return self._digests[tensor]

    def _words(self, tensor: str) -> Words:
        if not self._tensors:
            assert self.current is not None
            for file in weight_files(self.current):
                data = np.asarray(np.memmap(file, np.uint8, "r+"))
                for it in read_header(file):
                    self._tensors[it.name] = data[it.start : it.end].view(word_type(WORD_BYTES[it.kind]))
        if tensor not in self._tensors:
            raise DeltaRefused(f"the copy on this host has no tensor {tensor}")
        return self._tensors[tensor]

    def _rename(self, name: str) -> None:
        target = self.folder / name
        if self.current is not None and target != self.current:
            self.current = self.current.rename(target)


def own_folder() -> tuple[Path, IO[bytes]]:
    """A new temporary folder, and the file whose lock says, while it is open, that this process uses it.

    Removes those of processes that are gone: a killed one leaves the weights of a whole model.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        # In use, of another user, or removed by another process.
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        file = (folder / _LOCK).open("w+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, file
