"""Log-probs of whole responses under the reference, each computed once and kept in the run folder.

A file per reference, by the digest of its weights: RUN/reference/<digest>.sums, records of 16 bytes, the
digest of a prompt and its response, and a float64. It is only ever appended to; half a record at its end,
which a crash may leave, is cut off.
"""

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from asyncrl.records import ScoredSequence
from asyncrl.trainer.ranks import ranks

_RECORD = struct.Struct("<16sd")


def digest_of(sequence: ScoredSequence, temperature: float) -> bytes:
    """16 bytes that tell its tokens and which of them count."""
    spans = [place for span in sequence.observed for place in span]
    parts = (sequence.prompt_tokens, sequence.response_tokens, spans)
    found = hashlib.sha256(repr(temperature).encode())
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + np.asarray(part, "<i8").tobytes())
    return found.digest()[:16]


class ReferenceSums:
    """The same on every rank; the first rank alone has the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sums: dict[bytes, float] = {}
        self._is_open = False

    def open(self) -> None:
        """Reads what earlier processes have found, once. A call of every rank."""
        if not self._is_open:
            self._sums = ranks.broadcast(self._read() if ranks.is_first() else None)
            self._is_open = True

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sums

    def __getitem__(self, digest: bytes) -> float:
        return self._sums[digest]

    def add(self, own: Mapping[bytes, float]) -> None:
        """Makes known to all ranks what each has computed. A call of every rank."""
        parts = ranks.gather_to_first(dict(own))
        new = {digest: total for part in parts for digest, total in part.items() if digest not in self}
        if ranks.is_first() and new:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(b"".join(_RECORD.pack(digest, total) for digest, total in new.items()))
        self._sums |= ranks.broadcast(new if ranks.is_first() else None)

    def _read(self) -> dict[bytes, float]:
        if not self._file.is_file():
            return {}
        content = self._file.read_bytes()
        whole = len(content) - len(content) % _RECORD.size
        if whole < len(content):
            with self._file.open("ab") as file:
                file.truncate(whole)
        return dict(_RECORD.iter_unpack(content[:whole]))
