"""`asyncrl audit RUN`: trained responses graded again by another verifier or other tests. Is it hacking?"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from asyncrl.commands.arguments import add_recipe
from asyncrl.commands.parser import whole
from asyncrl.commands.train import explained
from asyncrl.commands.verify import add_settings, parse_settings
from asyncrl.data.digests import digest_of
from asyncrl.errors import InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.starts import changed_data
from asyncrl.observe.terminal.stage import stage
from asyncrl.observe.terminal.table import table_console, warn_on_stderr
from asyncrl.readers.audit.findings import Findings, findings, print_findings
from asyncrl.readers.audit.grading import (
    AuditTasks,
    Drawn,
    OtherGrader,
    Regraded,
    draw,
    grade_again,
    read_audit_tasks,
    read_golds,
)
from asyncrl.readers.selection.candidate import parse_range
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import absolute_object, load_recipe
from asyncrl.system.places import JOURNAL, RECIPE
from asyncrl.tasks.verifier_cache import VerifierCache

HELP = (
    "Grade a sample of a run's trained responses again, by another verifier, by other tests or by the row's "
    "own verifier as its file is now. Prints how often a reward was undeserved or refused by that, over the "
    "steps, with an example of each. Reads the journal and data.train; needs no model."
)
EXAMPLES = (
    "asyncrl audit runs/r1_zero_arithmetic_cpu",
    "asyncrl audit runs/r1_zero_arithmetic_cpu --verifier exact -n 200 --json",
)
SAMPLE = 1000


@dataclass
class Audit:
    """An audit, whose verdicts come one by one."""

    recipe: Recipe
    drawn: Drawn
    tasks: AuditTasks
    found: dict[str, Regraded] = field(default_factory=dict)

    def findings(self) -> Findings:
        return findings(self.drawn, self.tasks, self.found)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, help="the folder of a run")
    parser.usage = "%(prog)s RUN [section.key=value ...] [options]"
    parser.add_argument(
        "--verifier",
        metavar="NAME",
        help="the other verifier: built-in, module:Name or ./file.py:Name; default: each row's own again",
    )
    add_settings(parser, "an option of the other verifier")
    parser.add_argument(
        "--tests",
        type=Path,
        metavar="FILE",
        help='other golds: JSON lines {"task_id": "train:3", "answer": ...}, tests of code for example',
    )
    parser.add_argument("--steps", metavar="A-B", help="only responses that these steps trained")
    parser.add_argument(
        "--no-signal", action="store_true", help="also those of groups that were dropped for no signal"
    )
    parser.add_argument(
        "-n", type=whole(1), default=SAMPLE, help=f"responses to draw at most; default: {SAMPLE:,}"
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="of the drawing; default: 0")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 when audited, 1 when the other verifier gives no verdicts, 130 after Ctrl-C. Raises InputError."""
    warn_on_stderr()
    begun: list[Audit] = []
    # With --json standard output holds the object alone.
    with contextlib.redirect_stdout(sys.stderr):
        code = explained(lambda: _grade(arguments, begun), has_page=not arguments.json)
    if begun:
        _print(begun[0].findings(), arguments)
    return code


def _grade(arguments: argparse.Namespace, begun: list[Audit]) -> int:
    """`begun` holds the audit from the moment that it can be graded."""
    audit = _prepared(arguments)
    begun.append(audit)
    number = sum(response.task_id in audit.tasks.tasks for response in audit.drawn.responses)
    with stage("grading again", number, console=Console(stderr=True, highlight=False)) as progress:
        asyncio.run(grade_again(audit.recipe, audit.drawn, audit.tasks, audit.found, progress.advance))
    return 0


def _prepared(arguments: argparse.Namespace) -> Audit:
    steps = parse_range("--steps", arguments.steps, least=1)
    folder = arguments.recipe
    journal = JournalReader(folder / JOURNAL)
    recipe = load_recipe(folder / RECIPE, arguments.overrides)
    agent = recipe.agent
    if agent.is_on() and (agent.roles or agent.verdict == "branch"):
        key = "agent.roles" if agent.roles else "agent.verdict: branch"
        raise InputError(
            f"The run graded each branch of its agents' trajectories ({key}). asyncrl audit grades whole "
            f"trajectories again, so it has nothing to compare."
        )
    golds = None if arguments.tests is None else read_golds(arguments.tests)
    other = other_grader(arguments, golds)
    verifiers = VerifierCache(recipe.verifying.own_files())
    digest = digest_of(recipe.data.train_sources(), "data.train")
    if "data.train" in changed_data(journal, {"data.train": digest}):
        raise InputError(
            f"data.train has changed since {folder} was trained: its rows may hold other golds. Put the file "
            f"back, or name a copy of it by data.train=FILE; other golds are given by --tests."
        )
    drawn = draw(
        journal, other, most=arguments.n, seed=arguments.seed, steps=steps, has_dropped=arguments.no_signal
    )
    tasks = read_audit_tasks(recipe, {r.task_id for r in drawn.responses}, other, verifiers)
    check_golds(tasks, verifiers, ", or give golds that it reads by --tests")
    if not tasks.tasks:
        raise InputError(f"data.train has no row of the run's tasks, such as {drawn.responses[0].task_id}.")
    return Audit(recipe, drawn, tasks)


def other_grader(arguments: argparse.Namespace, golds: Mapping[str, Any] | None = None) -> OtherGrader:
    """By --verifier and --set. Raises InputError."""
    name = arguments.verifier and absolute_object(arguments.verifier, Path.cwd())
    return OtherGrader(name, parse_settings(arguments.settings), golds)


def check_golds(tasks: AuditTasks, verifiers: VerifierCache, way_out: str) -> None:
    """Raises InputError where the other verifier reads no gold, or cannot work on this machine."""
    if not tasks.tasks and tasks.unreadable:
        task_id, why = next(iter(tasks.unreadable.items()))
        raise InputError(
            f'The verifier "{", ".join(sorted(tasks.others))}" can read the gold of none of the '
            f"{len(tasks.unreadable):,} rows. {task_id}: {why}. Name another verifier{way_out}."
        )
    verifiers.check_machine()
    verifiers.close()


def _print(found: Findings, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(found))
    else:
        print_findings(found, str(arguments.recipe), table_console())
