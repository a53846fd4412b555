"""Tokens that choices of rows and pilots would have saved a run, by replay of its journal.

    python tests/benchmarks/signal_replay.py RUN [RUN ...]

RUN is a run folder whose groups were sampled whole. Prints the share of generated tokens that are in groups
with two rewards: as they were sampled; where an oracle that knows each row's pass rate had asked the best
rows; where pilots of 2 to 4 had decided which groups go on, each at its best of CHANCES. Pilots are replayed
in the order of versions: a group teaches later decisions once its version is over.

Replay cannot say what the policy would have learned from other groups: `selection_bench.py` trains.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.journal.reader import JournalReader
from asyncrl.records import RowVisit
from asyncrl.system.places import JOURNAL
from asyncrl.tasks.pass_rates import PassRates
from tests.benchmarks.kept import markdown

PILOTS = (2, 3, 4)
CHANCES = (0.2, 0.3, 0.4, 0.5, 0.6)
"""Values of rollout.pilot_min_chance that are tried."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Best rows that an oracle asks, of all."""
HALF_LIFE = 10.0
"""Versions; the default of data.selection.half_life_steps."""
_GRID = np.linspace(0.0, 1.0, 101)

_SAMPLES = """
SELECT group_id, task_id, admitted_version, correctness,
       (SELECT sum(length(tokens) / 4) FROM segments s WHERE s.trajectory_id = t.trajectory_id)
FROM trajectories t JOIN groups USING (group_id)
WHERE state != 'open' ORDER BY admitted_version, group_id, sample
"""


@dataclass(frozen=True)
class Sampled:
    """A whole group, all of which was graded right or wrong."""

    row: int
    version: int
    correct: NDArray[np.float64]
    """[N] 0 or 1."""
    tokens: NDArray[np.int64]
    """[N] lengths."""

    def is_mixed(self) -> bool:
        return 0 < self.correct.sum() < len(self.correct)


def read_groups(folder: Path) -> list[Sampled]:
    """Those of the largest size, in the order of their versions."""
    rows: dict[str, int] = {}
    by_group: dict[int, list[tuple[int, int, float | None, int | None]]] = {}
    for group_id, task_id, version, correct, num_tokens in JournalReader(folder / JOURNAL).read(_SAMPLES):
        row = rows.setdefault(task_id, len(rows))
        by_group.setdefault(group_id, []).append((row, version, correct, num_tokens))
    size = max(map(len, by_group.values()))
    return [
        _sampled(group)
        for group in by_group.values()
        if len(group) == size and all(correct in (0.0, 1.0) and count for *_, correct, count in group)
    ]


def _sampled(group: Sequence[tuple[int, int, float | None, int | None]]) -> Sampled:
    return Sampled(
        group[0][0],
        group[0][1],
        np.array([correct for _, _, correct, _ in group], dtype=np.float64),
        np.array([count for *_, count in group]),
    )


def useful_share(groups: Sequence[Sampled]) -> float:
    """Share of the tokens that are in groups with two rewards."""
    mixed = sum(int(group.tokens.sum()) for group in groups if group.is_mixed())
    return mixed / sum(int(group.tokens.sum()) for group in groups)


def pass_rates(groups: Sequence[Sampled]) -> NDArray[np.float64]:
    """[101] the likeliest distribution of true pass rates for the counts that were seen, on a grid from 0 to
    1: the nonparametric estimate of Kiefer and Wolfowitz (1956), by expectation maximization."""
    size = len(groups[0].correct)
    counts = np.array([round(float(group.correct.sum())) for group in groups])
    likely = np.array([comb(size, k) * _GRID**k * (1 - _GRID) ** (size - k) for k in range(size + 1)])[counts]
    weights = np.full(len(_GRID), 1 / len(_GRID))
    for _ in range(500):
        share = likely * weights
        weights = (share / share.sum(1, keepdims=True)).mean(0)
    return weights


def oracle_share(weights: NDArray[np.float64], size: int, share: float) -> float:
    """Chance of two rewards in a group of the best `share` of the rows, whose rates are known."""
    chances = 1 - _GRID**size - (1 - _GRID) ** size
    order = np.argsort(-chances)
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    asked = np.clip(share - before, 0.0, weights[order])
    return float((asked * chances[order]).sum() / asked.sum())


def decisions(groups: Sequence[Sampled], num_pilot: int, min_chance: float) -> Iterator[bool]:
    """Whether each group goes on after its pilot. The end of one is known once its version is over."""
    rates = PassRates(1 + max(group.row for group in groups), half_life=HALF_LIFE)
    unread: list[tuple[int, RowVisit]] = []
    version = -1
    for number, group in enumerate(groups):
        if group.version > version:
            version = group.version
            for row, visit in unread:
                rates.add(row, visit)
            unread.clear()
            rates.fit(version)
        right, size = int(group.correct[:num_pilot].sum()), len(group.correct)
        chance = rates.mixed_chance(
            group.row,
            version,
            num_right=right,
            num_wrong=num_pilot - right,
            num_more=size - num_pilot,
        )
        is_extended = 0 < right < num_pilot or chance >= min_chance
        seen = group.correct if is_extended else group.correct[:num_pilot]
        unread.append((group.row, RowVisit(number, version, len(seen), float(seen.mean()))))
        yield is_extended


def pilot_share(
    groups: Sequence[Sampled], num_pilot: int, are_extended: Sequence[bool]
) -> tuple[float, float]:
    """(share of the tokens in groups with two rewards, share of these groups that were sampled whole)."""
    spent = useful = kept = 0
    for group, is_extended in zip(groups, are_extended, strict=True):
        tokens = int(group.tokens.sum() if is_extended else group.tokens[:num_pilot].sum())
        spent += tokens
        useful += tokens * (is_extended and group.is_mixed())
        kept += is_extended and group.is_mixed()
    return useful / spent, kept / sum(group.is_mixed() for group in groups)


def report(groups: Sequence[Sampled]) -> str:
    """Markdown."""
    size, weights = len(groups[0].correct), pass_rates(groups)
    lines = [("none", f"{useful_share(groups):.1%}", "100%")]
    for share in SHARES:
        lines.append(
            (f"oracle, best {share:.0%} of the rows", f"{oracle_share(weights, size, share):.1%}", "")
        )
    for num_pilot in (each for each in PILOTS if each < size):
        found = []
        for chance in CHANCES:
            are_extended = list(decisions(groups, num_pilot, chance))
            found.append((*pilot_share(groups, num_pilot, are_extended), chance))
        useful, kept, chance = max(found)
        lines.append((f"pilot of {num_pilot}, from {chance:g}", f"{useful:.1%}", f"{kept:.0%}"))
    heads = ("choice", "tokens with a signal", "groups with one kept")
    return f"{len(groups)} groups of {size}\n\n{markdown(heads, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        print(f"{run}: {report(read_groups(run))}\n", flush=True)


if __name__ == "__main__":
    main()
