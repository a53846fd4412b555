"""Under which recipe each step was trained: a row of the journal per start of a run.

Some keys of a recipe may change between two starts (the layout of the trainer, the micro-batch budget); who
repeats a step needs those it was made with.
"""

import time

from asyncrl.replay.journal import Journal, JournalReader


def record_start(journal: Journal, version: int, recipe: str) -> None:
    """A run starts, or resumes, from the checkpoint of `version` under `recipe` (YAML, resolved)."""
    journal.write(
        # What an earlier start did after this version is done again.
        ("DELETE FROM starts WHERE version >= ?", (version,)),
        ("INSERT INTO starts VALUES (?, ?, ?)", (version, recipe, time.time())),
    )


def recipes_of_steps(journal: JournalReader, first: int, last: int) -> list[str]:
    """The recipes (YAML) that were in force in steps `first` to `last`, counted from 1, oldest first."""
    return [
        recipe
        for (recipe,) in journal.read(
            "SELECT recipe FROM starts WHERE version < :last AND version >= "
            "coalesce((SELECT max(version) FROM starts WHERE version < :first), 0) ORDER BY version",
            {"first": first, "last": last},
        )
    ]
