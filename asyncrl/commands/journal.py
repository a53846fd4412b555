"""`asyncrl journal RUN`: the fate of every token, or of one group or trajectory, and why."""

import argparse
from pathlib import Path

from asyncrl.commands.parser import whole
from asyncrl.errors import InputError
from asyncrl.journal.connection import REPEATED, read_counters
from asyncrl.journal.conservation import Conservation, read_conservation
from asyncrl.journal.explain import conservation_lines, explain_group, explain_trajectory
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.schema import tables_in_words
from asyncrl.observe.terminal.table import printable
from asyncrl.system.places import JOURNAL

HELP = (
    "Account for the tokens of a run: a table of all, or sentences about one group or trajectory. "
    "The journal is one SQLite file that any tool can query, also while the run trains: "
    f"{tables_in_words()}. "
    "Columns named step count from 0; here and in metrics.jsonl steps count from 1: step n made version n. "
    "Example: sqlite3 RUN/journal.sqlite 'SELECT state, reason, count(*) FROM groups GROUP BY 1, 2'."
)
EXAMPLES = (
    "asyncrl journal runs/r1_zero_arithmetic_cpu",
    "asyncrl journal runs/r1_zero_arithmetic_cpu --group 3",
    "asyncrl journal runs/r1_zero_arithmetic_cpu --trajectory 00000012-03",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--group", type=whole(0), metavar="ID", help="explain one group")
    chosen.add_argument("--trajectory", metavar="ID", help="explain one trajectory, such as 00000012-03")


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InputError when the run, the group or the trajectory is not there."""
    print(printable("\n".join(_lines(arguments))))
    return 0


def _lines(arguments: argparse.Namespace) -> list[str]:
    path = arguments.run / JOURNAL
    journal = JournalReader(path)
    if arguments.trajectory is not None:
        group_id = journal.group_of(arguments.trajectory)
        group = None if group_id is None else journal.group(group_id)
        if group is None:
            raise InputError(f"{path} holds no trajectory {arguments.trajectory}.")
        (trajectory,) = (t for t in group["trajectories"] if t["trajectory_id"] == arguments.trajectory)
        return explain_trajectory(journal, group, trajectory)
    if arguments.group is not None:
        group = journal.group(arguments.group)
        if group is None:
            raise InputError(f"{path} holds no group {arguments.group}.")
        return explain_group(journal, group)
    repeated = read_counters(journal).get(REPEATED, 0)
    again = [f"{repeated:,d} of the trained tokens were trained again (replay)."] if repeated else []
    return conservation_lines(Conservation(read_conservation(path), journal.fates())) + again
