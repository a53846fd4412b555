"""The delta of two versions: for each tensor the words that changed, as bits.

A word is one number of a tensor. What changed is the gap to the word before it and the XOR of old and new
bits, which are exact for every number, NaN and -0.0 included; differences of floats would drift. A folder
with a delta names the digest (XXH3 of the bytes) of each changed tensor before and after. No torch.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
import xxhash
import zstandard

from asyncrl.errors import AsyncrlError
from asyncrl.records import PolicyVersion
from asyncrl.system.files import write_whole

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
