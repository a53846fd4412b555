"""The recipe that each step was trained under, as a row of the journal per start of a run; and its data.

Some keys of a recipe may change between two starts (the layout of the trainer, the micro-batch budget);
repeating a step needs those it was made with. The data may not change unseen: `meta` keeps the digest of each
file as the run last read it, the base model's digest and the time that its chat templates were given.
"""

import time
from collections.abc import Mapping
from datetime import datetime

from asyncrl.journal.connection import Readable
from asyncrl.journal.ending import forget_end
from asyncrl.journal.facts import read_fact, set_fact, set_first_fact
from asyncrl.journal.writer import Journal
from asyncrl.records import PolicyVersion

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


def record_model(journal: Journal, digest: str) -> None:
    """Stores the digest of the base model that the run trains."""
    journal.write(set_fact(MODEL, digest))


def recorded_model(journal: Readable) -> str | None:
    """The digest of the base model; None before the first start."""
    return read_fact(journal, MODEL)


def record_unsampled(journal: Journal, ids: str) -> None:
    """Stores the token ids that the run never samples, as `model.unsampled` writes them."""
    journal.write(set_fact(UNSAMPLED, ids))


def recorded_unsampled(journal: Readable) -> str:
    """The token ids that the run never samples; none in a run that began before there were such."""
    return read_fact(journal, UNSAMPLED) or ""


def record_rendering(journal: Journal, rendered: datetime) -> None:
    """Stores, at the first start alone, the local time that chat templates were given."""
    journal.write(set_first_fact(RENDERED, rendered.isoformat()))


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
