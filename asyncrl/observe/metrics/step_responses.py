"""Columns of a step that are read from the texts and lengths of its responses, while the trainer has them.

They come from the journal, so that a step whose batch is given again after a restart has them too; and they
are metrics, so that they stay when `replay.keep_steps` removes the texts.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from asyncrl.journal.responses import StepResponse, read_step_responses
from asyncrl.journal.writer import Journal
from asyncrl.loops import TrainersWait, Waits, end_tasks
from asyncrl.records import PolicyVersion
from asyncrl.rollout.reflection import ReflectionWords
from asyncrl.run.metrics_file import Row


@dataclass
class _Sums:
    """Sums over the responses so far."""

    words: ReflectionWords | None
    lengths: dict[str, list[int]] = field(default_factory=dict)
    """Outcome -> tokens of each response."""
    counts: dict[str, list[int]] = field(default_factory=dict)
    """Outcome -> reflection words of each response whose text is there."""
    by_word: list[int] = field(default_factory=list)

    def add(self, response: StepResponse) -> None:
        self.lengths.setdefault(response.outcome, []).append(response.num_tokens)
        if self.words is None or response.text is None:
            return
        found = self.words.count(response.text)
        self.by_word = [sum(pair) for pair in zip(self.by_word or [0] * len(found), found, strict=True)]
        self.counts.setdefault(response.outcome, []).append(sum(found))

    def columns(self) -> Row:
        """Columns of graded responses of the batch's new groups; means are None where there was none.

        Reflection words have columns only where view.reflection_words names any."""
        columns: Row = {"response_tokens_mean_by_outcome": _means(self.lengths)}
        if self.words is None:
            return columns
        counts = [count for each in self.counts.values() for count in each]
        columns["reflection_words_mean"] = statistics.fmean(counts) if counts else None
        columns["reflection_words_share"] = statistics.fmean(map(bool, counts)) if counts else None
        columns["reflection_words_mean_by_outcome"] = _means(self.counts)
        columns["reflection_words_mean_by_word"] = (
            {word: sum_ / len(counts) for word, sum_ in zip(self.words.words, self.by_word, strict=True)}
            if counts
            else {}
        )
        return columns


@dataclass(eq=False)
class StepResponses:
    """One per run."""

    journal: Journal
    words: ReflectionWords | None
    num_samples: int
    """Sampled trajectories of a whole group."""
    waits: Waits
    _reading: "tuple[PolicyVersion, asyncio.Task[Row]] | None" = None

    def begin(self, version: PolicyVersion) -> None:
        """The trainer has the batch of `version`, which is on disk."""
        if self._reading is not None and self._reading[0] == version:
            return
        if self._reading is not None:
            self._reading[1].cancel()
        task = asyncio.create_task(self._read(version), name=f"responses of step {version + 1}")
        self._reading = version, task

    async def columns(self, version: PolicyVersion) -> Mapping[str, Any]:
        """Columns of the step that trains `version`; none where this process gave it no batch."""
        if self._reading is None or self._reading[0] != version:
            return {}
        with self.waits.waiting(TrainersWait.TAKE, "the texts of the last step"):
            return dict(await asyncio.shield(self._reading[1]))

    async def close(self) -> None:
        if self._reading is not None:
            await end_tasks(self._reading[1])

    async def _read(self, version: PolicyVersion) -> Row:
        sums = _Sums(self.words)
        with closing(read_step_responses(self.journal, version, num_samples=self.num_samples)) as groups:
            for group in groups:
                for response in group:
                    sums.add(response)
                # Streams are read in between.
                await asyncio.sleep(0)
        return sums.columns()


def _means(values: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {name: statistics.fmean(each) for name, each in sorted(values.items())}
