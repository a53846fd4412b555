"""Which checkpoints stay: the newest, and the one that did best on held-out tasks. No torch.

An evaluation is known some steps after its version was made. Until a later one is known, a checkpoint that
may still prove the best stays too.
"""

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from asyncrl.records import PolicyVersion

HELDOUT = "heldout.json"


class HeldOutAccuracies:
    """Version -> greedy held-out accuracy, in RUN/checkpoints/heldout.json. Safe for two threads.

    An accuracy is the version's at which the evaluation began; servers that were updated meanwhile answered
    part of the tasks with the versions just after it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / HELDOUT
        self._lock = threading.Lock()
        self._accuracies: dict[PolicyVersion, float] = {}
        if self._file.is_file():
            self._accuracies = {int(version): x for version, x in json.loads(self._file.read_text()).items()}

    def add(self, accuracies: Mapping[PolicyVersion, float]) -> None:
        """Writes the file when there is anything new."""
        with self._lock:
            if accuracies.items() <= self._accuracies.items():
                return
            self._accuracies = {**self._accuracies, **accuracies}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_name(f".{HELDOUT}.part")
            part.write_text(json.dumps(self._accuracies))
            os.replace(part, self._file)

    def accuracy(self, version: PolicyVersion) -> float | None:
        with self._lock:
            return self._accuracies.get(version)

    def best_first(self, versions: Iterable[PolicyVersion]) -> list[PolicyVersion]:
        """Those of `versions` that were evaluated; of equals the newer first."""
        with self._lock:
            known = [version for version in versions if version in self._accuracies]
            return sorted(known, key=lambda version: (-self._accuracies[version], -version))

    def newest(self) -> PolicyVersion:
        """The newest version that was evaluated, 0 without any."""
        with self._lock:
            return max(self._accuracies, default=0)


def to_forget(
    versions: Sequence[PolicyVersion], *, num_kept: int, heldout: HeldOutAccuracies, evaluated_every: int
) -> list[PolicyVersion]:
    """The ones of `versions` (ascending) to delete.

    With `evaluated_every` the best stays, and so do those whose evaluation may still be under way.
    """
    old = list(versions[:-num_kept])
    if not evaluated_every:
        return old
    best, newest = heldout.best_first(versions)[:1], heldout.newest()
    return [v for v in old if v not in best and (v % evaluated_every or v <= newest)]
