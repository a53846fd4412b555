"""Starts of a run and its end as the journal has them: the recipe of each step, where each start ran and what
it used, servers that were added or removed, facts in `meta`.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from asyncrl.journal.connection import Readable, Statement
from asyncrl.journal.writer import Journal
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe, Serving
from asyncrl.records import PolicyVersion
from asyncrl.system.files import sha256_of
from asyncrl.system.machine import Environment


def read_fact(journal: Readable, key: str) -> str | None:
    """The value of a fact; None while it is not set."""
    return next((value for (value,) in journal.read("SELECT value FROM meta WHERE key = ?", (key,))), None)


def set_fact(key: str, value: str) -> Statement:
    return "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value)


# Its last version is trained, saved and exported, and evaluated as the recipe asks. A run without this fact
# is not done, whatever its folder holds: the same command makes what is missing. A start removes it
# (`starts.record_start`).
RUN_END = "end of the run"
"""Key of `meta`."""


class RunEnd(BaseModel):
    """Why no further step follows."""

    model_config = ConfigDict(extra="forbid")

    version: PolicyVersion
    """The last one."""
    reason: Literal["num_steps", "stop_at_accuracy"]
    accuracy: float | None = None
    """Held-out, that reached evaluation.stop_at_accuracy."""

    def holds(self, recipe: Recipe) -> bool:
        """Whether it is an end under `recipe`, too, which may ask for more steps by now."""
        target = recipe.evaluation.stop_at_accuracy
        if self.version >= recipe.trainer.num_steps:
            return True
        return target is not None and self.accuracy is not None and self.accuracy >= target

    def words(self) -> str:
        """The key that ended it, and at which step."""
        if self.reason == "num_steps":
            return f"trainer.num_steps, at step {self.version}"
        return f"evaluation.stop_at_accuracy, with {self.accuracy:.3f}, at step {self.version}"


def record_end(journal: Journal, end: RunEnd) -> None:
    journal.write(set_fact(RUN_END, end.model_dump_json()))


def recorded_end(journal: Readable) -> RunEnd | None:
    """None for a run that is not done."""
    found = read_fact(journal, RUN_END)
    return None if found is None else RunEnd.model_validate_json(found)


def forget_end() -> Statement:
    return "DELETE FROM meta WHERE key = ?", (RUN_END,)


MODEL = "digest of model.path"
"""Key of `meta`: the base model's digest."""
UNSAMPLED = "tokens never sampled"
"""Key of `meta`: ids, such as "2,151669-151935"."""
RENDERED = "prompts rendered at"
"""Key of `meta`: the time that the run's chat templates were given, in ISO 8601."""


def record_start(journal: Journal, version: PolicyVersion, recipe: str) -> None:
    """A run starts, or resumes, from the checkpoint of `version` under `recipe` (YAML, resolved)."""
    journal.write(
        # Work that an earlier start did after this version is done again.
        ("DELETE FROM starts WHERE version >= ?", (version,)),
        ("DELETE FROM evaluated WHERE version > ?", (version,)),
        ("INSERT INTO starts VALUES (?, ?, ?)", (version, recipe, time.time())),
        forget_end(),
    )


def recorded_model(journal: Readable) -> str | None:
    """The digest of the base model; None before the first start."""
    return read_fact(journal, MODEL)


def recorded_unsampled(journal: Readable) -> str:
    """The token ids that the run never samples; none in a run that began before there were such."""
    return read_fact(journal, UNSAMPLED) or ""


def record_rendering(journal: Journal, rendered: datetime) -> None:
    """Stores, at the first start alone, the local time that chat templates were given."""
    journal.write(("INSERT OR IGNORE INTO meta VALUES (?, ?)", (RENDERED, rendered.isoformat())))


def recorded_rendering(journal: Readable) -> datetime | None:
    """The local time that chat templates were given; None before the first start."""
    found = read_fact(journal, RENDERED)
    return None if found is None else datetime.fromisoformat(found)


def changed_data(journal: Readable, digests: Mapping[str, str]) -> list[str]:
    """The keys (in the recipe) of the data files that are not what the last start of the run read."""
    known = dict(journal.read("SELECT key, value FROM meta WHERE key LIKE 'digest of %'"))
    return [key for key, digest in digests.items() if known.get(f"digest of {key}", digest) != digest]


def words_of_change(key: str) -> str:
    """Words for a person about a data file that changed."""
    return (
        f"the file of {key} has changed since the last start: unfinished answers are graded by the row that "
        f"now has their prompt, and the next prompts come from the new file"
    )


def record_data(journal: Journal, digests: Mapping[str, str]) -> None:
    """Stores the digest of each data file by its key."""
    journal.write(*(set_fact(f"digest of {key}", digest) for key, digest in digests.items()))


def recorded_data(journal: Readable) -> dict[str, str]:
    """data.train and data.heldout -> the digest of what the run last read."""
    rows = journal.read("SELECT key, value FROM meta WHERE key LIKE 'digest of data.%'")
    return {key.removeprefix("digest of "): digest for key, digest in rows}


def recipes_of_steps(journal: Readable, first: int, last: int) -> dict[int, str]:
    """The recipes (YAML) that were in force in steps `first` to `last`, counted from 1, oldest first: each by
    the first step that it was in force in, which for the oldest may be before `first`."""
    return {
        version + 1: recipe
        for version, recipe in journal.read(
            "SELECT version, recipe FROM starts WHERE version < :last AND version >= "
            "coalesce((SELECT max(version) FROM starts WHERE version < :first), 0) ORDER BY version",
            {"first": first, "last": last},
        )
    }


# No row is ever removed: that a run was started again is part of what it took.
_OWN_FILE = re.compile(r"(/[^:\n]*\.py):[A-Za-z_]\w*")


class StartRecord(BaseModel):
    """Record of one start."""

    model_config = ConfigDict(extra="forbid")

    environment: Environment
    shape: ModelShape
    code: dict[str, str]
    """File that the recipe names as "file.py:name" -> its SHA-256."""


class Start(BaseModel):
    """A start with its record."""

    started_seconds: float
    """Unix time."""
    version: PolicyVersion
    """Version of the checkpoint that it began from."""
    record: StartRecord


def record_environment(
    journal: Journal, started_seconds: float, version: PolicyVersion, record: StartRecord
) -> None:
    row = (started_seconds, version, record.model_dump_json())
    journal.write(("INSERT OR REPLACE INTO environments VALUES (?, ?, ?)", row))


def read_starts(journal: Readable) -> list[Start]:
    """Every start, the first one first."""
    rows = journal.read("SELECT started_seconds, version, environment FROM environments ORDER BY 1")
    return [
        Start(started_seconds=seconds, version=version, record=StartRecord.model_validate_json(text))
        for seconds, version, text in rows
    ]


def last_environment(journal: Readable) -> Environment | None:
    """In what the run ran last; None before its first start."""
    starts = read_starts(journal)
    return starts[-1].record.environment if starts else None


def code_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of the Python files that the recipe names and that are there."""
    files = dict.fromkeys(_own_files(recipe.model_dump()))
    return {file: sha256_of(Path(file)) for file in files if os.path.isfile(file)}


def _own_files(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _own_files(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _own_files(inner)
    elif isinstance(value, str) and (found := _OWN_FILE.fullmatch(value)):
        yield found[1]


def recorded_machines(journal: Readable) -> list[str]:
    """CPU, cores and GPUs of each machine that a start ran on; empty where the run recorded none."""
    found = [start.record.environment for start in read_starts(journal)]
    return list(dict.fromkeys(_words(each.cpu, each.num_cores, each.gpus) for each in found))


def _words(cpu: str, num_cores: int, gpus: Sequence[str]) -> str:
    held = [f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([*held, f"{num_cores} cores of {cpu}"])


# A change belongs to the servers that the recipe named at the time: with others in the recipe it is void. The
# processes of a run listen elsewhere after a restart, unless serving.first_port is set: of local servers that
# were removed only the number is known then, and none of them can be added back in a later start.
@dataclass(frozen=True, slots=True)
class ServerChanges:
    added: tuple[str, ...] = ()
    """URLs of external servers, oldest first."""
    removed: frozenset[str] = frozenset()
    """URLs of external ones that the recipe names."""
    removed_local: frozenset[str] = frozenset()
    """URLs that processes of the run had."""


def record_change(journal: Journal, action: str, url: str, *, is_local: bool, serving: Serving) -> None:
    """`action` is "add" or "remove"; `is_local` where the server is a process of the run."""
    row = (url, action, is_local, _named(serving), time.time())
    journal.write(("INSERT INTO servers VALUES (?, ?, ?, ?, ?)", row))


def read_changes(journal: Readable, serving: Serving) -> ServerChanges:
    """Changes that hold for a run that starts with `serving`: per server, the last one wins."""
    rows = journal.read(
        # SQLite takes the other columns from the row of the maximum.
        "SELECT url, action, is_local, max(rowid) FROM servers WHERE named = ? GROUP BY url, is_local "
        "ORDER BY max(rowid)",
        (_named(serving),),
    )

    def urls(wanted: str, *, is_local: bool) -> list[str]:
        return [url for url, action, local, _ in rows if action == wanted and bool(local) is is_local]

    return ServerChanges(
        tuple(urls("add", is_local=False)),
        frozenset(urls("remove", is_local=False)),
        frozenset(urls("remove", is_local=True)),
    )


def _named(serving: Serving) -> str:
    """The servers that the recipe names, as text."""
    return json.dumps([serving.servers, serving.num_servers, serving.first_port])


# A start's rows are overwritten while it runs, so that what a killed run used is known up to the last sample.
# No row of an earlier start is ever removed: time is spent even where steps are trained again.
RUN, CONTROLLER, OTHERS = "run", "controller", "verifiers"
"""Names of the rows of a start that are no processes of their own: the whole, this process, all others."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one process in one start."""

    name: str
    wall_seconds: float
    cpu_seconds: float | None = None
    num_gpus: int = 0
    num_restarts: int = 0


def record_usage(journal: Journal, started_seconds: float, usages: Sequence[Usage]) -> None:
    """Overwrites what the same start recorded before."""
    insert = "INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)"
    journal.write(*((insert, (started_seconds, *astuple(use))) for use in usages))


def read_usage(journal: Readable) -> dict[float, list[Usage]]:
    """Time that a start began -> what it used, the first one first."""
    rows = journal.read(
        "SELECT started_seconds, name, wall_seconds, cpu_seconds, num_gpus, num_restarts FROM usage "
        "ORDER BY 1, 2"
    )
    found: dict[float, list[Usage]] = {}
    for started, *fields in rows:
        found.setdefault(started, []).append(Usage(*fields))
    return found
