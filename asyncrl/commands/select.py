"""`asyncrl select RUN --out FILE`: responses of a run as data for SFT and DPO."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from asyncrl.commands.arguments import add_recipe, is_model
from asyncrl.commands.audit import check_golds, other_grader
from asyncrl.commands.pages import page_of
from asyncrl.commands.parser import whole
from asyncrl.commands.select_answers import Answers, check_generation
from asyncrl.commands.train import explained
from asyncrl.commands.verify import add_settings
from asyncrl.data.rows import Row, Unanswered, labels_of, train_rows
from asyncrl.errors import InputError
from asyncrl.evaluation.asked_sets import evaluated_questions
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import count_graded, read_groups
from asyncrl.journal.starts import changed_data, recorded_end
from asyncrl.launch.engine_only import watched_grader
from asyncrl.launch.prepare import fetch_model, prepare_and_fetch
from asyncrl.launch.stopping import INTERRUPTED
from asyncrl.model.source import find_source, model_folder
from asyncrl.observe.terminal.stage import stage
from asyncrl.observe.terminal.table import Table, print_table, table_console, warn_on_stderr
from asyncrl.readers.audit.grading import AuditTasks, OtherGrader, read_audit_tasks
from asyncrl.readers.selection.candidate import (
    UNITS,
    Account,
    Candidate,
    Fate,
    Filters,
    parse_range,
    parse_scores,
)
from asyncrl.readers.selection.choices import CHOICES, Choice, Rules, find_choice
from asyncrl.readers.selection.selection import Reading, Regrading, Selection, missing_responses
from asyncrl.readers.selection.written import TYPES, LineMaker, Origin, Output, check_output
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, model_recipe
from asyncrl.records import Task
from asyncrl.run.folder import RunFolder, data_digests, with_recorded_commit
from asyncrl.system.places import JOURNAL, RECIPE
from asyncrl.tasks.digests import template_digest, tokenizer_digest
from asyncrl.tasks.openings import Openings
from asyncrl.tasks.order import TaskTable
from asyncrl.tasks.task_list import use_of
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.kit import read_kit

HELP = (
    "Select responses of a run as data for SFT and DPO: best of n, all correct, shortest, the majority's, or "
    "preference pairs, without repeated texts and without questions that evaluations ask. With -n it "
    "generates what the journal lacks, or all from a recipe or a model; a call that is broken off continues "
    "when the same command runs again."
)
EXAMPLES = (
    "asyncrl select runs/r1_zero_arithmetic_cpu --out sft.jsonl",
    "asyncrl select runs/r1_zero_arithmetic_cpu --choose pairs -n 8 --out dpo.parquet",
)
DEFAULT = "correct"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, help="the folder of a run; with -n also a recipe, or a model with data.train=FILE")
    parser.usage = "%(prog)s RUN|RECIPE|MODEL --out FILE [section.key=value ...] [options]"
    parser.add_argument("--out", type=Path, required=True, help="the file to write: .jsonl or .parquet")
    parser.add_argument("--force", action="store_true", help="replace --out where it exists")
    kinds = "; ".join(f"{choice.name}: {choice.meaning}" for choice in CHOICES.values())
    parser.add_argument("--choose", default=DEFAULT, metavar="KIND", help=f"{kinds}. Default: {DEFAULT}")
    parser.add_argument(
        "--limit",
        type=whole(1),
        metavar="N",
        help="most lines of a row; default: 1 of best and shortest, else all",
    )
    parser.add_argument("--tokens", action="store_true", help="also the tokens of prompts and responses")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    _add_filters(parser)
    made = parser.add_argument_group("what is generated")
    made.add_argument("-n", type=whole(1), help="responses to each row; what the journal lacks is generated")
    made.add_argument(
        "--compacted", action="store_true", help="generate as many as replay.keep_steps took from the journal"
    )
    made.add_argument("--all-rows", action="store_true", help="also for rows that the run has not asked")
    made.add_argument("--at", help="model: base, best, last or a step; default: last of a run, else base")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    looked = parser.add_argument_group("which responses are looked at")
    looked.add_argument("--steps", metavar="A-B", help="those of these steps")
    looked.add_argument("--versions", metavar="A-B", help="those whose tokens are all of these versions")
    looked.add_argument("--length", metavar="A-B", help="those of this number of sampled tokens")
    looked.add_argument(
        "--source", action="append", default=[], metavar="LABEL", help="those to rows of this source"
    )
    looked.add_argument("--rows", metavar="A-B", help="those to these rows of each source, from 1")
    looked.add_argument(
        "--score", metavar="A-B", help="write, or prefer, those whose raw score is within this"
    )
    looked.add_argument(
        "--verifier", metavar="NAME", help="grade all by this one first, as asyncrl audit does"
    )
    add_settings(looked, "option of --verifier")


def run(arguments: argparse.Namespace) -> int:
    """0 when lines were written, 1 without any or for a failure, 130 after Ctrl-C. Raises InputError."""
    return selected(arguments)[0]


def selected(arguments: argparse.Namespace) -> tuple[int, Account | None]:
    """The exit code, and the account of a selection that is whole. Raises InputError."""
    warn_on_stderr()
    accounts: list[Account] = []
    # With --json standard output holds the object alone.
    with contextlib.redirect_stdout(sys.stderr):
        code = explained(lambda: _select(arguments, accounts), has_page=not arguments.json)
    for account in accounts:
        _print(account, arguments)
    if code == INTERRUPTED:
        words = "Stopped: --out was not written. Generated responses are kept: the same command continues."
        print(words, file=sys.stderr)
    return code, accounts[0] if accounts else None


def _select(arguments: argparse.Namespace, accounts: list[Account]) -> int:
    """`accounts` gets that of a whole selection."""
    work = Work.read(Request.of(arguments), arguments)
    account = asyncio.run(_write(work, arguments))
    accounts.append(account)
    if account.fates["responses"][Fate.WRITTEN]:
        return 0
    print("No response was selected, so no file was written.", file=sys.stderr)
    if not arguments.json:
        print(f"Read: {page_of(__name__)}", file=sys.stderr)
    return 1


async def _write(work: "Work", arguments: argparse.Namespace) -> Account:
    request, grader = work.request, None
    generated = await work.generated(arguments)
    console = Console(stderr=True, highlight=False)
    async with contextlib.AsyncExitStack() as stack:
        if request.choice.votes:
            grading = watched_grader(work.recipe, work.rows.verifiers)
            grader = await stack.enter_async_context(grading)
        output = stack.enter_context(Output(arguments.out, TYPES))
        progress = stack.enter_context(stage(f"writing {arguments.out}", len(work.rows), console=console))
        selection = Selection(
            work.reading,
            request.choice,
            request.rules,
            work.maker,
            output,
            grader,
            None if work.other is None else Regrading(work.recipe, work.other),
        )
        await selection.write(work.rows, generated, progress.advance)
        return selection.account


def _print(account: Account, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps({"out": str(arguments.out), **account.as_json()}))
        return
    print_table(Table("", (str(arguments.out), *UNITS), account.lines()), table_console())
    if account.num_generated:
        print(f"{account.num_generated:,} of the responses were generated; they are in no group.")


@dataclass(frozen=True, slots=True)
class Request:
    choice: Choice
    rules: Rules
    filters: Filters
    other: OtherGrader | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Request":
        """Raises InputError."""
        for option, is_given in (("--all-rows", arguments.all_rows), ("--at", arguments.at is not None)):
            if is_given and arguments.n is None and not (option == "--at" and arguments.compacted):
                raise InputError(f"{option} is about responses that are generated: give -n, too.")
        choice = find_choice(arguments.choose)
        check_output(arguments.out, replaces=arguments.force)
        filters = Filters(
            parse_range("--steps", arguments.steps, least=1),
            parse_range("--versions", arguments.versions, least=0),
            parse_range("--length", arguments.length, least=0),
            frozenset(arguments.source),
            parse_range("--rows", arguments.rows, least=1),
        )
        other = other_grader(arguments) if arguments.verifier is not None or arguments.settings else None
        return cls(choice, Rules(*parse_scores(arguments.score), arguments.limit), filters, other)


SPLIT = "train"


@dataclass(frozen=True)
class SelectedRows:
    recipe: Recipe
    verifiers: VerifierCache
    groups: dict[str, list[int]]
    """Row id -> its groups, of every row that the run asked."""
    table: TaskTable | list[Task] | None = None
    """All rows that can be asked, where those that the run has not asked are wanted, too."""

    def __iter__(self) -> Iterator[Row]:
        """In the order of the data. Raises InputError."""
        use = use_of(self.recipe, self.verifiers)
        for row in train_rows(self.recipe.data, self.recipe.verifying, use):
            if not isinstance(row, Unanswered) and self._is_wanted(row.row_id):
                yield row

    def __len__(self) -> int:
        return len(self.groups) if self.table is None else max(len(self.groups), len(self.table))

    def labels(self) -> Sequence[str]:
        """Labels of the sources of data.train."""
        return labels_of(self.recipe.data.train_sources(), SPLIT)

    def _is_wanted(self, row_id: str) -> bool:
        if row_id in self.groups:
            return True
        return isinstance(self.table, TaskTable) and self.table.row_of(row_id) is not None


@dataclass(frozen=True, slots=True)
class Work:
    request: Request
    recipe: Recipe
    reading: Reading
    rows: SelectedRows
    maker: LineMaker
    other: AuditTasks | None
    """Golds of --verifier."""
    answers: Answers | None
    """None where nothing is generated."""

    @classmethod
    def read(cls, request: Request, arguments: argparse.Namespace) -> "Work":
        """Raises InputError for whatever cannot be selected."""
        place, generates = arguments.recipe, arguments.n is not None or arguments.compacted
        is_run = (place / RECIPE).is_file() or not (place.is_file() or arguments.n is not None)
        journal = JournalReader(place / JOURNAL) if is_run else None
        recipe = _recipe(arguments, is_run=is_run)
        if journal is None and arguments.n is None:
            raise InputError(f"{place} is no run, so responses are generated: say how many to a row by -n.")
        if generates:
            check_generation(recipe)
        if journal is not None:
            _check_run(journal, recipe, place, generates=generates)
        answers = None
        if generates:
            path = place / RECIPE if is_run else place
            recipe = prepare_and_fetch(recipe, path, arguments.overrides, fetch_model)
            answers = Answers.read(recipe, arguments.at, has_journal=is_run)
        verifiers = VerifierCache(recipe.verifying.own_files())
        asks_all = answers is not None and (arguments.all_rows or not is_run)
        groups = {} if journal is None else read_groups(journal)
        rows = SelectedRows(recipe, verifiers, groups, answers.table() if answers and asks_all else None)
        request.filters.check_sources(rows.labels())
        return cls(
            request,
            recipe,
            Reading(journal, groups, request.filters, evaluated_questions(recipe)),
            rows,
            _line_maker(recipe, request.choice.name, arguments),
            None if request.other is None else _audit_tasks(recipe, request.other, rows, verifiers),
            answers,
        )

    async def generated(self, arguments: argparse.Namespace) -> dict[str, list[Candidate]]:
        """Row id -> responses that the journal lacks. Raises EvaluationFailed."""
        if self.answers is None:
            return {}
        lacking = missing_responses(
            self.reading.parts(self.rows), wanted=arguments.n or 0, replaces_compacted=arguments.compacted
        )
        return await self.answers.generate(lacking, self.other) if lacking else {}


def _recipe(arguments: argparse.Namespace, *, is_run: bool) -> Recipe:
    place, overrides = arguments.recipe, arguments.overrides
    if is_run:
        return with_recorded_commit(load_recipe(place / RECIPE, overrides))
    if not is_model(place):
        return load_recipe(place, overrides)
    if not any(word.startswith("data.train") for word in overrides):
        raise InputError(
            f"{place} is taken for a model, for it is no run and no recipe: name the rows that it is asked "
            f"by data.train=FILE."
        )
    return model_recipe(str(place), overrides)


def _check_run(journal: JournalReader, recipe: Recipe, run: Path, *, generates: bool) -> None:
    """Raises InputError for a run that has nothing to select."""
    num_graded, num_texts = count_graded(journal)
    if recipe.agent.is_on():
        raise InputError(
            f"The {num_graded:,} responses of {run} are an agent's own conversations, of which the journal "
            f"has tokens and no messages. asyncrl select writes responses to rows, with turns of tools and "
            f"environments alone."
        )
    if not num_graded and not generates:
        raise InputError(f"{journal.path}: no response was graded yet. Give -n to generate some.")
    if not num_texts and not generates:
        raise InputError(
            f"{journal.path}: the texts of all {num_graded:,} responses were compacted. Give --compacted or "
            f"-n to generate others; runs keep more with a larger replay.keep_steps."
        )
    if "data.train" in changed_data(journal, data_digests(recipe)):
        raise InputError(
            f"data.train has changed since {run} was trained: its rows may stand elsewhere. Put the file "
            f"back, or name a copy of it by data.train=FILE."
        )
    if recorded_end(journal) is None:
        print(f"{run} has not ended: this selects among what it graded so far.", file=sys.stderr)


def _audit_tasks(
    recipe: Recipe, other: OtherGrader, rows: SelectedRows, verifiers: VerifierCache
) -> AuditTasks:
    """Golds as the other verifier reads them. Raises InputError where it reads none."""
    wanted = {row.row_id for row in rows}
    tasks = read_audit_tasks(recipe, wanted, other, verifiers, what="A response of asyncrl select")
    check_golds(tasks, verifiers, "")
    return tasks


def _line_maker(recipe: Recipe, choice: str, arguments: argparse.Namespace) -> LineMaker:
    """Raises InputError where turns must be decoded, but the model's folder is not on this machine."""
    folder, has_turns = _tokenizer_folder(recipe), recipe.turns.is_on()
    if folder is None and has_turns:
        folder = model_folder(recipe.model)
    codec = template = tokenizer = None
    if folder is None:
        words = "The model's folder is not on this machine: from_template and from_tokenizer are empty."
        print(words, file=sys.stderr)
    else:
        codec = read_kit(recipe, folder, now=RunFolder(recipe.folder()).rendering_time()).codec
        template, tokenizer = template_digest(recipe, codec), tokenizer_digest(folder)
    origin = Origin(str(arguments.recipe), choice, template, tokenizer)
    opened = Openings(recipe.verifying.own_files()).opened
    return LineMaker(origin, codec, has_turns, arguments.tokens, opened)


def _tokenizer_folder(recipe: Recipe) -> Path | None:
    """The base model's folder, or that of a checkpoint, which has the same tokenizer."""
    source = find_source(recipe.model)
    places = [None if source is None else source.folder, RunFolder(recipe.folder()).newest_export()]
    there = (place for place in places if place is not None and (place / "tokenizer.json").is_file())
    return next(there, None)
