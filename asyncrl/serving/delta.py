"""The delta of two versions, for each tensor the words that changed, as bits; and the copy on a server's host
that deltas change from one version into the next.

A word is one number of a tensor. What changed is the gap to the word before it and the XOR of old and new
bits, which are exact for every number, NaN and -0.0 included; differences of floats would drift. A folder
with a delta names the digest (XXH3 of the bytes) of each changed tensor before and after. No torch.
"""

import contextlib
import fcntl
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
import xxhash
import zstandard

from asyncrl.errors import AsyncrlError
from asyncrl.model.weights import read_header, weight_files
from asyncrl.records import PolicyVersion
from asyncrl.serving.publication import DELTA
from asyncrl.system.files import write_whole
from asyncrl.wire.file_service import is_url

MANIFEST = "delta.json"
MAX_CHANGED_SHARE = 0.25
"""With more changed words `auto` sends all: a delta has about 4 bytes for each, before it is compressed."""
DELTAS_PER_ANCHOR = 19
"""Each 20th version is sent whole by `auto`."""
ESCAPE = 0xFFFF
"""A gap of this size is not followed by a changed word: the next gap adds to it."""
_HEADER = struct.Struct("<?QQ")
"""Whether the rest is compressed, number of gaps, number of changed words."""
_LEVEL = 1
Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.unsignedinteger]


class DeltaRefused(AsyncrlError):
    """A delta that does not fit: another base, damaged bytes, or a result that is not the new version."""


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor's part of a delta."""

    data: bytes
    """`encode` of it."""
    base: str
    digest: str
    """Digests of the tensor before and after."""


def word_type(num_bytes: int) -> np.dtype[np.unsignedinteger]:
    """Type of words of 1, 2, 4 or 8 bytes."""
    return np.dtype(f"<u{num_bytes}")


def bytes_digest(data: npt.NDArray[np.uint8]) -> str:
    """As `tensor_digest` of a tensor on a CPU with these bytes."""
    return xxhash.xxh3_64_hexdigest(data.data)


def encode(positions: Positions, changes: Words, *, is_compressed: bool) -> bytes:
    """Bytes of a tensor's delta: `positions` [N] ascending, `changes` [N] the XOR of old and new words."""
    skipped = np.diff(positions, prepend=-1) - 1
    num_escapes = skipped // ESCAPE
    gaps = np.full(len(positions) + int(num_escapes.sum()), ESCAPE, "<u2")
    gaps[np.arange(len(positions)) + np.cumsum(num_escapes)] = skipped % ESCAPE
    payload = _planes(gaps) + _planes(changes)
    if is_compressed:
        payload = zstandard.ZstdCompressor(level=_LEVEL).compress(payload)
    return _HEADER.pack(is_compressed, len(gaps), len(changes)) + payload


def decode(data: bytes, *, num_words: int, kind: np.dtype[np.unsignedinteger]) -> tuple[Positions, Words]:
    """Inverse of `encode`, for a tensor of `num_words` words. Raises DeltaRefused for other bytes."""
    try:
        is_compressed, num_gaps, num_changes = _HEADER.unpack_from(data)
        num_bytes = 2 * num_gaps + kind.itemsize * num_changes
        if num_gaps > 2 * num_words or num_changes > num_words:
            raise ValueError(f"{num_changes} changes in {num_words} words")
        payload = data[_HEADER.size :]
        if is_compressed:
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=num_bytes)
        if len(payload) != num_bytes:
            raise ValueError(f"{len(payload)} bytes, expected {num_bytes}")
    except (struct.error, zstandard.ZstdError, ValueError) as error:
        raise DeltaRefused(f"a tensor's delta cannot be read: {error}") from None
    gaps = _words(payload[: 2 * num_gaps], np.dtype("<u2"))
    is_change = gaps != ESCAPE
    positions = np.cumsum(gaps.astype(np.int64) + is_change)[is_change] - 1
    if len(positions) != num_changes or (num_changes and positions[-1] >= num_words):
        raise DeltaRefused(f"a tensor's delta has {len(positions)} positions for {num_changes} changes")
    return positions, _words(payload[2 * num_gaps :], kind)


def _planes(words: Words) -> bytes:
    """First bytes of all words, then second ones: the high ones, mostly 0, compress to nothing."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), words.itemsize).T.tobytes()


def _words(planes: bytes, kind: np.dtype[np.unsignedinteger]) -> Words:
    rows = np.frombuffer(planes, np.uint8).reshape(kind.itemsize, len(planes) // kind.itemsize)
    return np.ascontiguousarray(rows.T).view(kind).reshape(-1)


def write_changes(file: Path, changes: Mapping[str, Change]) -> int:
    """Writes the changes of some tensors; returns the number of bytes."""
    data = {name: np.frombuffer(change.data, np.uint8) for name, change in changes.items()}
    safetensors.numpy.save_file(data, file)
    return file.stat().st_size


def read_changes(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Each changed tensor with its part of the delta, one at a time. Raises DeltaRefused."""
    try:
        for file in sorted(folder.glob("*.safetensors")):
            with safetensors.safe_open(file, framework="numpy") as changes:
                for name in changes.keys():
                    yield name, changes.get_tensor(name).tobytes()
    except (OSError, safetensors.SafetensorError) as error:
        raise DeltaRefused(f"{folder} is damaged: {error}") from None


def write_manifest(folder: Path, digests: Mapping[str, tuple[str, str]], *, version: PolicyVersion) -> None:
    """Completes a folder of changes. `digests`: tensor -> its digests before and after."""
    write_whole(folder / MANIFEST, json.dumps({"version": version, "digests": digests}))


def read_manifest(folder: Path) -> dict[str, tuple[str, str]]:
    """Digests of each changed tensor before and after. Raises DeltaRefused."""
    try:
        found = json.loads((folder / MANIFEST).read_text())["digests"]
        return {str(name): (str(base), str(digest)) for name, (base, digest) in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeltaRefused(f"{folder} is not a delta: {type(error).__name__}: {error}") from None


class DeltaRule:
    """Whether a version is sent as a delta. One per trainer process: the first version is sent whole."""

    def __init__(self, *, is_auto: bool) -> None:
        """Not `is_auto` (serving.weight_encoding delta): whenever there is a version before."""
        self._is_auto = is_auto
        self._is_kept = False
        """Whether servers were told to keep the version before."""
        self._num_deltas = 0
        """Since the last version that was sent whole."""

    def sends_delta(self, changed_share: float | None) -> bool:
        """Decides on a version whose share of words has changed; None where it must be whole."""
        is_small = changed_share is None or not self._is_auto or changed_share <= MAX_CHANGED_SHARE
        is_anchor = self._is_auto and self._num_deltas >= DELTAS_PER_ANCHOR
        is_delta = changed_share is not None and self._is_kept and is_small and not is_anchor
        self._num_deltas = self._num_deltas + 1 if is_delta else 0
        self._is_kept = is_small
        return is_delta

    def is_kept(self) -> bool:
        """Whether the next version may be a delta of this one: servers then keep a copy."""
        return self._is_kept


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
