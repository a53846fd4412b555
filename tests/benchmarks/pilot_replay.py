"""Pilots replayed on the journal of a run without them: the tokens that they would have saved, and the cost.

    python tests/benchmarks/pilot_replay.py RUN [RUN ...] [--pilots 2,3] [--chances 0.2,1] [--until STEP]

Each run samples whole groups, so its journal says what the first n trajectories of each group showed and what
the others would have: the rule of `rollout/filter.py`, with the record that it would have had, decides for
each. Prints per setting the waste (the share of tokens in groups with one reward), and per group with two
rewards the tokens that it took, relative to whole groups: a batch of groups with two rewards
(replay.drops_no_signal) costs that much. Intervals are over runs. What is not in it: the policy would have
learned from other groups, since a pilot gives up groups that would have become mixed later (the last column).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# The repository first: tests/verifiers would pass for the package.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from fakes.records import make_score, make_task

from asyncrl.journal.reader import JournalReader
from asyncrl.records import RowVisit, Trajectory
from asyncrl.replay.group import Group
from asyncrl.rollout.filter import AdaptiveGroups
from asyncrl.system.places import JOURNAL
from asyncrl.tasks.pass_rates import PassRates
from asyncrl.tasks.selection import RowSelection
from tests.benchmarks.paired import interval

HALF_LIFE = 20
"""The default of data.selection.half_life_steps."""

_TRAJECTORIES = """
WITH lengths AS (
    SELECT trajectory_id, sum(length(tokens)) / 4 AS num_tokens FROM segments GROUP BY 1
    UNION ALL SELECT trajectory_id, num_tokens FROM compacted)
SELECT group_id, task_id, a.version, t.correctness, l.num_tokens
FROM answers a JOIN trajectories t USING (group_id) JOIN lengths l USING (trajectory_id)
WHERE t.branch_of IS NULL ORDER BY a.version, group_id, t.sample
"""


@dataclass(frozen=True)
class Graded:
    """A whole group of the journal; `correct` and `lengths` by sample."""

    task_id: str
    version: int
    """The trainer's when it was graded."""
    correct: list[float]
    lengths: list[int]

    def is_mixed(self, num_samples: int) -> bool:
        return len(set(self.correct[:num_samples])) > 1


@dataclass
class Spent:
    tokens: int = 0
    useful: int = 0
    """Tokens of groups with two rewards."""
    num_mixed: int = 0

    def add(self, group: Graded, num_samples: int) -> None:
        tokens = sum(group.lengths[:num_samples])
        self.tokens += tokens
        if group.is_mixed(num_samples):
            self.useful += tokens
            self.num_mixed += 1

    def waste(self) -> float:
        return 1.0 - self.useful / self.tokens

    def tokens_per_mixed(self) -> float:
        return self.tokens / self.num_mixed


def read_groups(folder: Path, until: int | None = None) -> list[Graded]:
    """In the order of grading; groups with a fault are left out."""
    found: dict[int, Graded] = {}
    for group_id, task_id, version, correct, num_tokens in JournalReader(folder / JOURNAL).read(
        _TRAJECTORIES
    ):
        if until is None or version < until:
            group = found.setdefault(group_id, Graded(task_id, version, [], []))
            group.correct.append(correct)
            group.lengths.append(num_tokens)
    whole = max(len(group.correct) for group in found.values())
    return [g for g in found.values() if len(g.correct) == whole and None not in g.correct]


def replay(groups: Sequence[Graded], pilot: int, min_chance: float) -> Spent:
    """Tokens that the same groups had taken with a pilot."""
    rows = {task_id: row for row, task_id in enumerate(dict.fromkeys(g.task_id for g in groups))}
    record = RowSelection(None, PassRates(len(rows), half_life=HALF_LIFE), [len(rows)], seed=0, reach=0)
    spent, whole = Spent(), len(groups[0].correct)
    for number, each in enumerate(groups):
        row = rows[each.task_id]
        record.learn(each.version)
        adaptive = AdaptiveGroups(
            whole, min_chance, record.rates, lambda _, row=row: row, lambda each=each: each.version
        )
        num_samples = whole if adaptive.extends(_pilot_of(each, pilot), teaches=False) else pilot
        spent.add(each, num_samples)
        correct = sum(each.correct[:num_samples]) / num_samples
        record.visited(row, RowVisit(number, each.version, num_samples, correct))
    return spent


def _pilot_of(group: Graded, num_samples: int) -> Group:
    names = [str(sample) for sample in range(num_samples)]
    scores = {name: make_score(correct) for name, correct in zip(names, group.correct, strict=False)}
    return Group(0, make_task(), group.version, [Trajectory(name, (1,)) for name in names], scores=scores)


def whole_groups(groups: Sequence[Graded]) -> Spent:
    spent = Spent()
    for group in groups:
        spent.add(group, len(group.correct))
    return spent


def lines(runs: Sequence[Sequence[Graded]], pilots: Sequence[int], chances: Sequence[float]) -> Iterator[str]:
    """Markdown."""
    yield "| pilot | min_chance | waste | tokens per mixed group, of whole groups' | mixed groups given up |"
    yield "|---|---|---|---|---|"
    bases = [whole_groups(groups) for groups in runs]
    yield f"| none | | {_percent([base.waste() for base in bases])} | 100% | |"
    for pilot in pilots:
        for chance in chances:
            found = [replay(groups, pilot, chance) for groups in runs]
            pairs = list(zip(found, bases, strict=True))
            cost = [own.tokens_per_mixed() / base.tokens_per_mixed() for own, base in pairs]
            lost = [1.0 - own.num_mixed / base.num_mixed for own, base in pairs]
            cells = [_percent([own.waste() for own in found]), _percent(cost), _percent(lost)]
            yield f"| {pilot} | {chance:g} | {' | '.join(cells)} |"


def _percent(values: Sequence[float]) -> str:
    mean, width = interval(list(values))
    return f"{100 * mean:.0f}%" if len(values) == 1 else f"{100 * mean:.0f} ± {100 * width:.0f}%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--pilots", default="2,3,4")
    parser.add_argument("--chances", default="0.2,0.3,0.4,1")
    parser.add_argument("--until", type=int, metavar="STEP", help="groups graded before it; default: all")
    arguments = parser.parse_args()
    runs = [read_groups(run, arguments.until) for run in arguments.runs]
    pilots, chances = arguments.pilots.split(","), arguments.chances.split(",")
    print("\n".join(lines(runs, list(map(int, pilots)), list(map(float, chances)))))


if __name__ == "__main__":
    main()
