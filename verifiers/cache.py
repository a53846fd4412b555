"""Verdicts by digest, so that equal responses to one task are graded once. Bounded in entries and in bytes.

A key is a digest of all that decides: the verifier's name, options and folder, its own source file, the
reference, and the part of the response that the verifier names (`cache_key`). The pool makes it, so no
verifier can forget the reference. What has no digest (it cannot be pickled, or pickles differently each time)
is not cached. Not covered: modules that a verifier of yours imports and that are edited during a run."""

import hashlib
import os
import pickle
import sys
import weakref
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from verifiers.verdict import Outcome, Verdict

_PROTOCOL = 5
_ATOMS = (type(None), bool, int, float, complex, str, bytes, Fraction, Decimal)
# The dict's slot, the key and the Verdict itself, measured.
_ENTRY_BYTES = 500
# References that cannot be watched weakly (they have slots) are held, if they are small.
_MAX_HELD = 1024
_MAX_HELD_BYTES = 4096


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _is_immutable(value: Any) -> bool:
    """Whether nothing in the value can change: atoms, tuples, frozen sets and frozen dataclasses of such."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind in (tuple, frozenset):
        return all(map(_is_immutable, value))
    if not (is_dataclass(value) and kind.__dataclass_params__.frozen):
        return False
    members = vars(value).values() if hasattr(value, "__dict__") else ()
    named = (getattr(value, field.name, None) for field in fields(value))
    return all(map(_is_immutable, members)) and all(map(_is_immutable, named))


def part_digest(part: Hashable) -> bytes | None:
    """The digest of what a verifier's `cache_key` returned; None where equal digests might not mean equal."""
    # An object of a class of its own may equal itself alone and still pickle like every other one.
    return _digest(pickle.dumps(part, _PROTOCOL)) if _is_immutable(part) else None


def source_stamp(verifier: object) -> tuple[int, int, int] | None:
    """Stamp that tells versions of a verifier's source file apart; None for the built-in ones."""
    module = type(verifier).__module__
    if module.partition(".")[0] == "verifiers":
        return None
    path = getattr(sys.modules.get(module), "__file__", None)
    try:
        found = os.stat(path) if path else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else (0, 0, 0)


class ReferenceDigests:
    """Digests of references. One that cannot change is digested once, not once per response."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[weakref.ref[Any], bytes]] = {}
        self._held: dict[int, tuple[Any, bytes]] = {}

    def digest(self, reference: Any) -> bytes | None:
        """None: it cannot be pickled, or not twice alike."""
        number = id(reference)
        held = self._held.get(number)
        if held is not None and held[0] is reference:
            return held[1]
        watched = self._watched.get(number)
        if watched is not None and watched[0]() is reference:
            return watched[1]
        try:
            pickled = pickle.dumps(reference, _PROTOCOL)
            if pickle.dumps(reference, _PROTOCOL) != pickled:
                return None
        except Exception:  # whatever a custom reference raises when it is pickled
            return None
        found = _digest(pickled)
        # Atoms and tuples are quick to pickle.
        if is_dataclass(reference) and _is_immutable(reference):
            self._remember(reference, found, len(pickled))
        return found

    def _remember(self, reference: Any, digest: bytes, size: int) -> None:
        number = id(reference)
        # A task's tests can take megabytes, and a tenth of a second each time they are pickled.
        if type(reference).__weakrefoffset__:
            watch = weakref.ref(reference, lambda _: self._watched.pop(number, None))
            self._watched[number] = (watch, digest)
        elif size <= _MAX_HELD_BYTES:
            if len(self._held) >= _MAX_HELD:
                del self._held[next(iter(self._held))]
            self._held[number] = (reference, digest)


class VerdictCache:
    """Verdicts by key, the least recently used leave first. Holds nothing that another run could judge
    differently: no fault, and no verdict that says so itself (`Verdict.is_repeatable`). Nor one with rewards
    for spans or turns: those of another response with an equal part lie elsewhere."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._verdicts: dict[bytes, Verdict] = {}
        self.num_bytes = 0
        """Held by keys and verdicts."""

    def __len__(self) -> int:
        return len(self._verdicts)

    def get(self, key: bytes) -> Verdict | None:
        """The verdict, which becomes the most recently used one."""
        found = self._verdicts.pop(key, None)
        if found is not None:
            self._verdicts[key] = found
        return found

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keeps the verdict, if it may be kept and is not larger than the whole cache."""
        size = _size(verdict)
        is_kept = verdict.outcome is not Outcome.FAULT and verdict.is_repeatable
        if not is_kept or verdict.has_credits() or size > self._max_bytes:
            return
        self._drop(key)
        self._verdicts[key] = verdict
        self.num_bytes += size
        while len(self._verdicts) > self._max_entries or self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._verdicts)))

    def _drop(self, key: bytes) -> None:
        verdict = self._verdicts.pop(key, None)
        if verdict is not None:
            self.num_bytes -= _size(verdict)


def _size(verdict: Verdict) -> int:
    texts = (verdict.extracted, verdict.detail, verdict.method)
    named = [verdict.scores, *verdict.scores] if verdict.scores else []
    return _ENTRY_BYTES + sum(sys.getsizeof(each) for each in (*texts, *named))
