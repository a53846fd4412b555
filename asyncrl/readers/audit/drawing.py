"""Which responses of a run are graded again: a sample of its trained ones by a fixed seed."""

import random
from dataclasses import dataclass

from asyncrl.errors import InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.trained_responses import ANY_STEP, TrainedResponse, read_recorded, read_responses
from asyncrl.readers.audit.golds import OtherGrader


@dataclass(frozen=True, slots=True)
class Drawn:
    responses: list[TrainedResponse]
    """In a random order: the first ones are a sample of all."""
    num_trained: int
    """Responses that it was drawn from, compacted ones left out."""
    num_compacted: int
    """Left out, for their texts are no longer kept."""
    num_without_gold: int
    """Left out, for --tests has no gold for their task."""


def draw(
    journal: JournalReader,
    other: OtherGrader,
    *,
    most: int,
    seed: int,
    steps: tuple[int, int] | None = None,
    has_dropped: bool = False,
) -> Drawn:
    """At most `most` responses. Raises InputError where there is none to grade."""
    recorded = read_recorded(journal, steps=steps or ANY_STEP, has_dropped=has_dropped)
    kept = [response for response in recorded if not response.is_compacted]
    golds = other.golds
    graded = kept if golds is None else [response for response in kept if response.task_id in golds]
    if not graded:
        raise InputError(_why_none(journal, len(recorded), len(kept), steps))
    chosen = random.Random(seed).sample(graded, min(most, len(graded)))
    responses = read_responses(journal, [response.trajectory_id for response in chosen])
    return Drawn(responses, len(graded), len(recorded) - len(kept), len(kept) - len(graded))


def _why_none(journal: JournalReader, num_recorded: int, num_kept: int, steps: tuple[int, int] | None) -> str:
    if num_kept:
        return (
            f"--tests has no gold for any task of {num_kept:,} responses. A task_id is the journal's, "
            f"such as {read_recorded(journal)[0].task_id}."
        )
    if num_recorded:
        return (
            f"{journal.path}: the texts of all {num_recorded:,} responses were compacted. Runs keep more "
            f"with a larger replay.keep_steps."
        )
    there = journal.step_range()
    if there is None:
        return f"{journal.path}: no response was trained yet."
    asked = "" if steps is None else f"steps {steps[0]} to {steps[1]} trained none; "
    return f"{journal.path}: {asked}the run trained steps {there[0]} to {there[1]}."
