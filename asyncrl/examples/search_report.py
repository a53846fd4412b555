"""Steps of search and verification in the responses of a run of Countdown, over its steps.

    python -m asyncrl.examples.search_report runs/r1_zero_countdown_cpu [--parts 4]

Prints a Markdown table: reward, and counts of `search_steps`, per graded response, for equal ranges of steps,
with 95% intervals over groups. Groups that were dropped for no signal are among them.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, stdev

from asyncrl.errors import InputError
from asyncrl.examples.countdown import game_of
from asyncrl.examples.search_steps import SearchSteps, count_steps, total
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import TrainedResponse, read_recorded, read_responses
from asyncrl.system.places import JOURNAL

COUNTS = [field.name for field in fields(SearchSteps) if field.name != "responses"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m asyncrl.examples.search_report")
    parser.add_argument("run", type=Path)
    parser.add_argument("--parts", type=int, default=4, help="ranges of steps (default: 4)")
    arguments = parser.parse_args()
    try:
        responses = read_trained(arguments.run / JOURNAL)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(split(responses, max(1, arguments.parts))))
    return 0


def read_trained(journal: Path) -> list[TrainedResponse]:
    """Graded responses, as far as the run has kept their texts. Raises InputError without one."""
    reader = JournalReader(journal)
    kept = [
        recorded.trajectory_id
        for recorded in read_recorded(reader, has_dropped=True)
        if not recorded.is_compacted
    ]
    if not kept:
        raise InputError(f"{journal}: no response was graded yet, or none has kept its text.")
    return read_responses(reader, kept)


def split(responses: Sequence[TrainedResponse], parts: int) -> dict[str, list[TrainedResponse]]:
    """Responses by ranges of steps of equal length, such as "1-25"; the last one may be shorter."""
    last = max(response.step for response in responses)
    length = math.ceil(last / parts)
    found = defaultdict[str, list[TrainedResponse]](list)
    for response in sorted(responses, key=lambda response: response.step):
        start = (response.step - 1) // length * length
        found[f"{start + 1}-{min(start + length, last)}"].append(response)
    return found


def table(ranges: dict[str, list[TrainedResponse]]) -> str:
    """Markdown: a row per count, a column per range of steps."""
    groups = [by_group(responses) for responses in ranges.values()]
    rewards = [_mean([fmean(response.reward or 0.0 for response in group) for group in of]) for of in groups]
    lines = [
        f"| per response, steps | {' | '.join(ranges)} |",
        "|---" * (len(ranges) + 1) + "|",
        f"| reward | {' | '.join(rewards)} |",
    ]
    counts = [[total(map(steps_of, group)) for group in of] for of in groups]
    for name in COUNTS:
        cells = [_mean([getattr(each, name) / each.responses for each in of]) for of in counts]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_group(responses: Sequence[TrainedResponse]) -> list[list[TrainedResponse]]:
    """The responses to each prompt at each step."""
    found = defaultdict[tuple[str, int], list[TrainedResponse]](list)
    for response in responses:
        found[response.task_id, response.step].append(response)
    return list(found.values())


def steps_of(response: TrainedResponse) -> SearchSteps:
    return count_steps(response.text, game_of(response.prompt))


def _mean(values: list[float]) -> str:
    """The mean and its normal 95% interval; groups are the unit."""
    mean = fmean(values)
    margin = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return f"{mean:.3f} ± {margin:.3f}"


if __name__ == "__main__":
    sys.exit(main())
