"""Columns of a step that are read from the texts and lengths of its responses, while the trainer has them.

They come from the journal, so that a step whose batch is given again after a restart has them too; and they
are metrics, so that they stay when `replay.keep_steps` removes the texts.
"""

import asyncio
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from asyncrl.journal.responses import read_step_responses
from asyncrl.journal.writer import Journal
from asyncrl.loops import TrainersWait, Waits, end_tasks
from asyncrl.records import PolicyVersion
from asyncrl.rollout.reflection import ReflectionWords
from asyncrl.run.metrics_file import Row


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
        """Columns of graded responses of the batch's new groups; means are None where there was none.

        Reflection words have columns only where view.reflection_words names any."""
        lengths: defaultdict[str, list[int]] = defaultdict(list)
        counts: defaultdict[str, list[int]] = defaultdict(list)
        by_word: Counter[str] = Counter()
        with closing(read_step_responses(self.journal, version, num_samples=self.num_samples)) as groups:
            for group in groups:
                for response in group:
                    lengths[response.outcome].append(response.num_tokens)
                    if self.words is not None and response.text is not None:
                        found = self.words.count(response.text)
                        counts[response.outcome].append(sum(found))
                        by_word.update(dict(zip(self.words.words, found, strict=True)))
                # Streams are read in between.
                await asyncio.sleep(0)
        columns: Row = {"response_tokens_mean_by_outcome": _means(lengths)}
        if self.words is None:
            return columns
        each = [count for found in counts.values() for count in found]
        return {
            **columns,
            "reflection_words_mean": statistics.fmean(each) if each else None,
            "reflection_words_share": statistics.fmean(map(bool, each)) if each else None,
            "reflection_words_mean_by_outcome": _means(counts),
            "reflection_words_mean_by_word": (
                {word: by_word[word] / len(each) for word in self.words.words} if each else {}
            ),
        }


def _means(values: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {name: statistics.fmean(each) for name, each in sorted(values.items())}
