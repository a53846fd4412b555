"""How a run ended: a fact of its journal, recorded once everything that the run makes is there.

Its last version is trained, saved and exported, and evaluated as the recipe asks. A run without this fact is
not done, whatever its folder holds: the same command makes what is missing. A start removes it
(`starts.record_start`).
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from asyncrl.journal.connection import Readable
from asyncrl.journal.counters import Statement
from asyncrl.journal.facts import forget_fact, read_fact, set_fact
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion

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
    return forget_fact(RUN_END)
