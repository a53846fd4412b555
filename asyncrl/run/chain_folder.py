"""The folder of a chain: its stages as they were planned, and what each selection saw and cost.

What a trained stage did is in its run folder. One launcher at a time; all files are replaced whole.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe.file import shown
from asyncrl.run.chain_plan import SELECTION, PlannedStage
from asyncrl.system.files import read_text, write_whole
from asyncrl.system.places import LOCK, RECIPE
from asyncrl.system.words import as_written

CHAIN = "chain.json"
SILENT_SECONDS = 30.0
"""A selection that was written down longer ago is no longer running: it is about every two seconds."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Kind = TypeVar("Kind", bound=_Record)


class StageRecord(_Record):
    name: str
    kind: str
    """select, sft, dpo or rl."""
    place: str
    """The run folder; of a selection its file."""


class ChainRecord(_Record):
    name: str
    file: str
    """File that lists its stages."""
    stages: list[StageRecord]


class SelectionRecord(_Record):
    """Settings of a selection, and how far it is."""

    settings: dict[str, Any]
    """The stage of the chain, every key."""
    state: Literal["running", "stopped", "finished"]
    written_seconds: float
    """Unix time."""
    model: str | None
    """Folder of the model that generates; None where a run's own responses are selected."""
    wall_seconds: float = 0.0
    """Over all starts, as are the CPU seconds."""
    cpu_seconds: float = 0.0
    account: dict[str, Any] | None = None
    """`Account.as_json` of a whole selection."""
    num_lines: int | None = None
    digest: str | None = None
    """SHA-256 of the file."""

    def is_running(self) -> bool:
        return self.state == "running" and time.time() - self.written_seconds < SILENT_SECONDS


class ChainFolder:
    """Opened for writing by one launcher; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def record(self) -> ChainRecord | None:
        """None before the chain's first start. Raises InputError."""
        return _read(self.path / CHAIN, ChainRecord)

    def selection(self, number: int) -> SelectionRecord | None:
        """The record of the selection that is stage `number`; None before it begins. Raises InputError."""
        return _read(self._selection(number), SelectionRecord)

    def write_selection(self, number: int, record: SelectionRecord) -> None:
        write_whole(self._selection(number), record.model_dump_json(indent=1) + "\n")

    def open(self, name: str, file: Path, stages: Sequence[PlannedStage]) -> None:
        """Creates the folder, takes its lock and writes the stages down. Raises InputError where another
        launcher holds it, and where a stage that has begun is another one now."""
        if (self.path / RECIPE).is_file():
            raise InputError(f"folder is {shown(self.path)}, which is that of a run. Name another one.")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / LOCK).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError(
                f"folder {shown(self.path)} is in use by another asyncrl chain. Wait for it, stop it, or "
                f"name another folder."
            ) from None
        self._check(stages)
        written = [
            StageRecord(name=stage.name, kind=stage.kind, place=str(stage.place.absolute()))
            for stage in stages
        ]
        record = ChainRecord(name=name, file=os.path.abspath(file), stages=written)
        write_whole(self.path / CHAIN, record.model_dump_json(indent=1) + "\n")

    def _check(self, stages: Sequence[PlannedStage]) -> None:
        """Raises InputError where a stage that has begun is not what `stages` says."""
        there = self.record()
        begun = (
            []
            if there is None
            else [
                number for number, stage in enumerate(there.stages, start=1) if self.has_begun(number, stage)
            ]
        )
        for number in begun:
            assert there is not None
            was = there.stages[number - 1]
            now = stages[number - 1] if number <= len(stages) else None
            if now is None or (now.kind, str(now.place.absolute())) != (was.kind, was.place):
                found = (
                    "is gone from the chain" if now is None else f"is now {now.kind} into {shown(now.place)}"
                )
                raise InputError(
                    f"Stage {number} of {shown(self.path)} was {was.kind} into {shown(Path(was.place))}, has "
                    f"begun, and {found}. Put it back, or set folder (or name) of the chain to a new one."
                )
            self._check_selection(number, now)

    def _check_selection(self, number: int, now: PlannedStage) -> None:
        known = self.selection(number) if now.kind == SELECTION else None
        for key, value in now.settings().items():
            if known is not None and known.settings.get(key) != value:
                raise InputError(
                    f"Stage {number} began with {key} = {as_written(known.settings.get(key))}, the chain now "
                    f"says {as_written(value)}. Put the old value back; to select again, name another `out`, "
                    f"and another folder (or name) of the chain."
                )

    def has_begun(self, number: int, stage: StageRecord) -> bool:
        if stage.kind == SELECTION:
            return self._selection(number).is_file()
        return (Path(stage.place) / RECIPE).is_file()

    def _selection(self, number: int) -> Path:
        return self.path / f"stage-{number}.json"

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "ChainFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return kind.model_validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(
            f"{path} is damaged: {error.errors()[0]['msg']}. Put it back, or remove the folder."
        ) from None
