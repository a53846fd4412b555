"""All that `asyncrl select` reads before it writes: the run, the rows, golds of another verifier, a model."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.commands.named_model import is_model
from asyncrl.commands.select_answers import Answers, check_generation
from asyncrl.commands.verify import parse_settings
from asyncrl.data.rows import Row, Unanswered, labels_of, train_rows
from asyncrl.errors import InputError
from asyncrl.evaluation.asked_sets import evaluated_questions
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import count_graded, read_groups
from asyncrl.journal.starts import changed_data, recorded_end
from asyncrl.launch.base_model import fetch_model
from asyncrl.launch.prepare import prepare_and_fetch
from asyncrl.model.source import find_source, model_folder
from asyncrl.readers.audit.grading import AuditTasks, OtherGrader, read_audit_tasks
from asyncrl.readers.selection.candidate import Candidate, Filters, parse_range, parse_scores
from asyncrl.readers.selection.choices import Choice, Rules, find_choice
from asyncrl.readers.selection.selection import Reading, missing_responses
from asyncrl.readers.selection.written import LineMaker, Origin, check_output
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import absolute_object, load_recipe, model_recipe
from asyncrl.records import Task
from asyncrl.rollout.grade import Grader
from asyncrl.run.folder import RunFolder, data_digests, with_recorded_commit
from asyncrl.system.places import JOURNAL, RECIPE
from asyncrl.tasks.digests import template_digest, tokenizer_digest
from asyncrl.tasks.openings import Openings
from asyncrl.tasks.order import TaskTable
from asyncrl.tasks.task_list import use_of
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.kit import read_kit


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
        return cls(choice, Rules(*parse_scores(arguments.score), arguments.limit), filters, _other(arguments))


def _other(arguments: argparse.Namespace) -> OtherGrader | None:
    try:
        options = parse_settings(arguments.settings)
    except ValueError as error:
        raise InputError(str(error)) from error
    if arguments.verifier is None and not options:
        return None
    return OtherGrader(arguments.verifier and absolute_object(arguments.verifier, Path.cwd()), options)


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
    grader: Grader
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
            Grader(recipe.verifying, verifiers, max_fault_retries=recipe.rollout.max_fault_retries),
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
    if not tasks.tasks and tasks.unreadable:
        row_id, why = next(iter(tasks.unreadable.items()))
        raise InputError(
            f'The verifier "{", ".join(sorted(tasks.others))}" can read the gold of none of the '
            f"{len(tasks.unreadable):,} rows. {row_id}: {why}. Name another verifier."
        )
    verifiers.check_machine()
    verifiers.close()
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
