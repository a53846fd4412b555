"""Choices of rows and pilots at equal numbers of generated tokens: a recipe in several arms, by seed.

    python tests/benchmarks/selection_bench.py RECIPE [--arm "NAME: section.key=value ..."] [--seeds 0,1,2]
        [--folder .bench/selection] [--until STEP] [--read-only] [section.key=value ...]

The first arm is what the others are compared with, seed by seed. Each run has a folder that stays, without
its checkpoints: a complete run is not run again, one that was cut resumes. Prints per arm the *waste*, the
share of the generated tokens in groups of which all graded trajectories have one reward, dropped groups
included; the tokens generated until held-out accuracies; the mean accuracy over the same number of tokens.
Means and differences have 95% intervals over seeds (Student's t). FOLDER/RECIPE.jsonl gets all numbers.

Tokens count as generated before version v where an older version sampled them: what is sampled ahead for
later steps counts, what an evaluation samples does not. The last steps of a run sample nothing ahead; --until
leaves them out of all numbers.
"""

import argparse
import json
import math
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.journal.reader import JournalReader
from asyncrl.system.places import JOURNAL
from tests.benchmarks.kept import markdown
from tests.benchmarks.paired import interval
from tests.benchmarks.seeds import read_evaluations, train

ARMS = (
    "shipped:",
    "learnable: data.selection=learnable",
    "pilot: rollout.pilot_samples=2",
    "both: data.selection=learnable rollout.pilot_samples=2",
)
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Held-out accuracies whose tokens are compared."""

_SAMPLED = """
WITH sampled AS (
    SELECT trajectory_id, version, length(tokens) / 4 AS num_tokens FROM segments
    UNION ALL
    SELECT trajectory_id, json_extract(value, '$[0]'), json_extract(value, '$[1]')
    FROM compacted, json_each(compacted.segments)),
kinds AS (
    SELECT group_id, count(DISTINCT correctness) AS num_rewards FROM trajectories
    JOIN groups USING (group_id) WHERE state != 'open' GROUP BY group_id)
SELECT version, coalesce(num_rewards = 1, 0), sum(num_tokens)
FROM sampled JOIN trajectories USING (trajectory_id) LEFT JOIN kinds USING (group_id) GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Run:
    """One `asyncrl train`."""

    arm: str
    seed: int
    tokens: list[int]
    """[E] generated before the version of each evaluation: rising."""
    accuracy: list[float]
    """[E] greedy, held-out."""
    steps: list[int]
    """[E] versions that were evaluated."""
    generated: int
    """Tokens of the whole run."""
    wasted: int
    """Of these, tokens of groups with one reward."""

    def waste(self) -> float:
        return self.wasted / self.generated

    def tokens_to(self, level: float) -> float | None:
        """Where the line through the evaluations first reaches `level`; None where it does not."""
        if self.accuracy[0] >= level:
            return float(self.tokens[0])
        for i in range(1, len(self.tokens)):
            if self.accuracy[i] >= level:
                rise = (level - self.accuracy[i - 1]) / (self.accuracy[i] - self.accuracy[i - 1])
                return self.tokens[i - 1] + rise * (self.tokens[i] - self.tokens[i - 1])
        return None

    def accuracy_at(self, tokens: float) -> float:
        """On the line through the evaluations; `tokens` lie between the first and the last one."""
        for i in range(1, len(self.tokens)):
            if tokens <= self.tokens[i]:
                share = (tokens - self.tokens[i - 1]) / (self.tokens[i] - self.tokens[i - 1])
                return self.accuracy[i - 1] + share * (self.accuracy[i] - self.accuracy[i - 1])
        raise ValueError(f"the run generated {self.tokens[-1]} tokens, fewer than {tokens:.0f}")

    def mean_accuracy(self, tokens: float) -> float:
        """Mean over all numbers of tokens from 0 to `tokens`: the whole curve in one number."""
        places = [*(place for place in self.tokens if place < tokens), tokens]
        heights = [*self.accuracy[: len(places) - 1], self.accuracy_at(tokens)]
        area = sum(
            (places[i] - places[i - 1]) * (heights[i] + heights[i - 1]) / 2 for i in range(1, len(places))
        )
        return area / (places[-1] - places[0])


def read_run(arm: str, seed: int, folder: Path, until: int | None = None) -> Run:
    """`until`: the version that the run is read to, as if it had ended there."""
    end = math.inf if until is None else until
    counts = [row for row in JournalReader(folder / JOURNAL).read(_SAMPLED) if row[0] < end]
    latest: dict[int, float] = {}
    for row in read_evaluations(folder):
        latest[row["step"]] = row["greedy_accuracy"]
    steps = sorted(step for step in latest if step <= end)
    return Run(
        arm,
        seed,
        [sum(count for version, _, count in counts if version < step) for step in steps],
        [latest[step] for step in steps],
        steps,
        sum(count for _, _, count in counts),
        sum(count for _, is_one_reward, count in counts if is_one_reward),
    )


def fewer_tokens(run: Run, base: Run, levels: Sequence[float]) -> float | None:
    """Mean over `levels` of log(tokens of `run` / tokens of `base`), where both reach them."""
    found = [(run.tokens_to(level), base.tokens_to(level)) for level in levels]
    logs = [math.log(own / other) for own, other in found if own and other]
    return statistics.fmean(logs) if logs else None


def table(runs: Sequence[Run], levels: Sequence[float] = LEVELS) -> str:
    """Markdown, a row per arm. Differences are to the first arm's run of the same seed."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    bases = {run.seed: run for run in runs if run.arm == arms[0]}
    equal = min(run.tokens[-1] for run in runs)
    heads = [f"tokens to {100 * level:.0f}%" for level in levels]
    heads = ["arm", "seeds", "waste", "generated", *heads, f"accuracy at {equal / 1000:.0f}k"]
    heads += ["mean until there", f"mean less {arms[0]}'s", f"tokens to equal accuracy, of {arms[0]}'s"]
    lines = []
    for arm in arms:
        own = [run for run in runs if run.arm == arm]
        cells = [arm, str(len(own)), _percent([run.waste() for run in own])]
        cells += [_thousands([run.generated for run in own])]
        cells += [_thousands([run.tokens_to(level) for run in own]) for level in levels]
        cells += [_percent([run.accuracy_at(equal) for run in own])]
        cells += [_percent([run.mean_accuracy(equal) for run in own])]
        pairs = [] if arm == arms[0] else [(run, bases[run.seed]) for run in own if run.seed in bases]
        gains = [run.mean_accuracy(equal) - base.mean_accuracy(equal) for run, base in pairs]
        logs = [fewer_tokens(run, base, levels) for run, base in pairs]
        cells += [_percent(gains), _ratio([log for log in logs if log is not None])]
        lines.append(cells)
    return markdown(heads, lines)


def _percent(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean, width = interval(list(values))
    return f"{100 * mean:.1f}" + ("" if math.isnan(width) else f" ± {100 * width:.1f}") + "%"


def _thousands(values: Sequence[float | None]) -> str:
    """Of those that are there, and how many are not."""
    found = [value / 1000 for value in values if value is not None]
    if not found:
        return "never"
    mean, width = interval(found)
    text = f"{mean:.1f}k" + ("" if math.isnan(width) else f" ± {width:.1f}")
    return text + ("" if len(found) == len(values) else f" ({len(found)} of {len(values)} runs)")


def _ratio(logs: Sequence[float]) -> str:
    """Geometric mean and its interval, which is symmetric in the logarithm."""
    if not logs:
        return ""
    mean, width = interval(list(logs))
    text = f"{100 * math.exp(mean):.0f}%"
    if math.isnan(width):
        return text
    return f"{text} ({100 * math.exp(mean - width):.0f}-{100 * math.exp(mean + width):.0f})"


def parse_arm(text: str) -> tuple[str, list[str]]:
    """ "name: section.key=value ..." as the name and its overrides."""
    name, _, overrides = text.partition(":")
    return name.strip(), overrides.split()


def run_arm(recipe: Path, seed: int, folder: Path, overrides: list[str]) -> None:
    """Trains unless it is done, and removes checkpoints, weights and logs of what is done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    train(recipe, seed, folder, overrides)
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--arm", action="append", metavar="NAME: KEY=VALUE ...", help="instead of ARMS")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, default=Path(".bench/selection"))
    parser.add_argument("--until", type=int, metavar="STEP", help="an evaluated one; default: to the end")
    parser.add_argument("--read-only", action="store_true", help="trains nothing, reads what is there")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="of every arm")
    arguments = parser.parse_args()
    base = (arguments.folder / arguments.recipe.stem).absolute()
    arms = [parse_arm(text) for text in arguments.arm or ARMS]
    runs: list[Run] = []
    for seed in map(int, arguments.seeds.split(",")):
        for name, own in arms:
            folder = base / f"{name}-{seed}"
            if not arguments.read_only:
                run_arm(arguments.recipe, seed, folder, [*arguments.overrides, *own])
            elif not folder.exists():
                continue
            runs.append(read_run(name, seed, folder, arguments.until))
            rows: list[dict[str, Any]] = [asdict(run) for run in runs]
            base.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(runs))


if __name__ == "__main__":
    main()
