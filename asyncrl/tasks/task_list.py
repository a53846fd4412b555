"""Rows of data -> tasks. Every row is checked before anything starts; an error names its place.

A row is read, mapped to its columns and rendered once, and packed. Each distinct short gold is parsed once.
A prompt is tokenized only where its byte length does not prove that it fits; tokens and parsed gold of a task
are made when it is asked.
"""

import contextlib
import dataclasses
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, Protocol

from asyncrl.data.prompts import Prompt, PromptTemplate, template_title, told_title
from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import Row, Unanswered, train_rows
from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Data, Recipe, Source
from asyncrl.records import Task, VerifierSpec
from asyncrl.system.places import cache_folder
from asyncrl.tasks.digests import table_name
from asyncrl.tasks.openings import Openings
from asyncrl.tasks.order import TaskTable
from asyncrl.tasks.packed_rows import Findings, PackedTask, PackedTasks, Packer, load_packed
from asyncrl.tasks.row_choice import MAX_KNOWN_GOLDS, Repeats, RowChoice, ShortGold, short_gold
from asyncrl.tasks.verifier_cache import (
    NO_VERIFIER,
    GoldExample,
    VerifierCache,
    key_of,
    reference_of,
)
from verifiers import task as told_task
from verifiers.verifier import Verifier

log = logging.getLogger(__name__)

REPEATED, BROKEN, LONG, FILTERED = (
    "repeated",
    "without an answer that can be parsed",
    "with too long a prompt",
    "by data.filter",
)
_ROWS_PER_LOOK = 500
"""Rows between two looks at the clock."""
_ROWS_PER_COUNT = 1000
"""Rows that wait until the tokens of all of them are counted at once."""


class Progress(Protocol):
    def show(self, what: str) -> None: ...


ReadingStage = Callable[[str], contextlib.AbstractContextManager[Progress]]
"""Shows a person the progress of reading, given what is read; a reader without one shows nothing."""


@contextlib.contextmanager
def reading(key: str, stage: ReadingStage | None) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the rows of `key` read so far."""
    with contextlib.nullcontext() if stage is None else stage(f"reading {key}") as progress:
        yield lambda num_rows: None if progress is None else progress.show(f"{num_rows:,} rows")


class _Rendered(NamedTuple):
    """A row that makes a task if its prompt is short enough."""

    row: Row
    prompt: Prompt
    text: str
    adds_special_tokens: bool
    verifier_key: str
    is_short: bool
    """Whether its bytes say already that it is."""


def told_row(row: Row) -> told_task.Task:
    """The task of a row as a verifier reads it, its prompt not rendered; empty for one that does not."""
    if row.columns is None:
        return told_task.Task()
    if isinstance(row.prompt, str):
        return told_task.Task(row.prompt, (), row.columns)
    return told_task.Task("", tuple(row.prompt), row.columns)


def _told(packed: PackedTask) -> told_task.Task:
    return told_task.Task(packed.text, packed.messages, packed.columns)


@dataclass(frozen=True, slots=True)
class TaskSet:
    tasks: TaskTable
    sizes: tuple[int, ...]
    """Tasks of each source; its tasks stand together."""
    num_filtered: int = 0
    """Rows that data.filter leaves out."""


def template_of(recipe: Recipe) -> Callable[[Prompt], Prompt] | None:
    """The template of all prompts; None leaves them as they are. Raises InputError."""
    section = recipe.prompt
    if section is None or section.template is None:
        return partial(_messages_alone, why) if (why := recipe.needs_messages()) else None
    examples = [example.model_dump() for example in section.examples]
    return PromptTemplate(section.template, system=section.system, suffix=section.suffix, examples=examples)


def _messages_alone(why: str, prompt: Prompt) -> Prompt:
    """The prompt as it is. Raises InputError for text."""
    if isinstance(prompt, str):
        raise InputError(
            f"{why}, but the prompt is text, {prompt[:80]!r}, which no chat template renders again. Set "
            f"prompt.template to chat, or remove the key."
        )
    return prompt


def title_of(recipe: Recipe) -> str:
    """Name of the template of all prompts, as results show it, with what the chat template is told."""
    return told_title(
        template_title(recipe.prompt.template if recipe.prompt is not None else None),
        recipe.chat_template_kwargs(),
    )


def use_of(recipe: Recipe, verifiers: VerifierCache) -> RowUse:
    """The uses of rows in this recipe."""
    return RowUse(recipe.turns, verifiers.takes_task, has_agent=recipe.agent.is_on())


def read_train_tasks(
    recipe: Recipe,
    codec: TextCodec,
    verifiers: VerifierCache,
    context_tokens: int,
    stage: ReadingStage | None = None,
) -> TaskSet:
    """Raises InputError for a source without rows, and for a row that cannot be used."""
    sources = recipe.data.train_sources()
    choice = RowChoice.of(recipe.data)
    has_answers = recipe.has_verdicts()
    use = dataclasses.replace(use_of(recipe, verifiers), picked=choice.columns(), has_answers=has_answers)
    rows = train_rows(recipe.data, recipe.verifying, use, None if has_answers else NO_VERIFIER)
    template = template_of(recipe)
    maker = TaskMaker("data.train", recipe.data, codec, verifiers, context_tokens, template, is_grouped=True)
    maker.stage = stage
    name = table_name(recipe, codec, context_tokens)
    maker.choice = choice
    tasks = maker.make(rows, sources, name=name)
    sizes = tuple(maker.findings.num_made[index] for index in range(len(sources)))
    return TaskSet(tasks, sizes, maker.findings.left_out[FILTERED])


@dataclass
class TaskMaker:
    """Makes the tasks of data.train or data.heldout, and counts the rows that it leaves out."""

    key: str
    data: Data
    codec: TextCodec
    verifiers: VerifierCache
    context_tokens: int
    template: Callable[[Prompt], Prompt] | None = None
    is_grouped: bool = False
    """Whether several responses to a task may be judged together (`VerifierCache.check_groups`)."""
    choice: RowChoice = RowChoice()
    stage: ReadingStage | None = None
    findings: Findings = field(default_factory=Findings)
    _repeats: Repeats = field(init=False)
    _known_golds: set[ShortGold] = field(default_factory=set)
    """Short golds that parse."""
    _newest: tuple[VerifierSpec, str, Verifier] | None = None
    _waiting: list[_Rendered] = field(default_factory=list)
    """Rows from the first one on whose tokens are still to be counted."""

    def __post_init__(self) -> None:
        self._repeats = Repeats(self.findings)

    def make(
        self, rows: Iterable[Row | Unanswered], sources: Sequence[Source], *, name: str | None = None
    ) -> TaskTable:
        """Raises InputError. An earlier start may have kept the rows under `name`, and a later one finds them
        there."""
        packed = None if name is None else load_packed(cache_folder("tasks") / name)
        # What a verifier prints is no part of what a command prints.
        with contextlib.redirect_stdout(sys.stderr):
            if packed is None:
                packed = self._pack(rows, name)
            else:
                self._recall(packed)
        for index, source in enumerate(sources):
            if not self.findings.num_made[index]:
                why = f" that can be used: {self.findings.reasons()}" if self.findings.left_out else ""
                raise InputError(f"{self.key} names {source.title()}, which holds no rows{why}.")
        self._warn()
        return TaskTable(packed, self._made)

    def _pack(self, rows: Iterable[Row | Unanswered], name: str | None) -> PackedTasks:
        packer = Packer(cache_folder("tasks"))
        try:
            with reading(self.key, self.stage) as show:
                self._add_all(rows, packer, show)
                return packer.finish(self.findings, name)
        except BaseException:
            packer.discard()
            raise
        finally:
            self._repeats.forget()

    def _add_all(self, rows: Iterable[Row | Unanswered], packer: Packer, show: Callable[[int], None]) -> None:
        try:
            for row in rows:
                self._add(row, packer)
                if self.findings.num_rows % _ROWS_PER_LOOK == 0:
                    show(self.findings.num_rows)
        except InputError:
            # A row that waits stands before this one: its own error comes first.
            self._settle(packer)
            raise
        self._settle(packer)

    def _recall(self, packed: PackedTasks) -> None:
        """Takes over an earlier start's findings on the same rows, and an example for each verifier."""
        self.findings = packed.findings
        for index, where in packed.examples:
            row = packed.row(index)
            key, verifier = self._verifier(row.verifier)
            reference = self.verifiers.parse(verifier, row.answer, name=row.verifier.name, where=where)
            self.verifiers.remember(GoldExample(where, row.verifier, row.answer, reference, _told(row)), key)

    def _add(self, row: Row | Unanswered, packer: Packer) -> None:
        self.findings.num_rows += 1
        if not self.choice.wants(row):
            self.findings.leave_out(FILTERED, row.where)
            return
        if isinstance(row, Unanswered):
            self._broken(row.where, row.complaint)
            return
        row = self._openings.opened(row)
        try:
            key, verifier = self._verifier(row.verifier)
            gold = short_gold(row.answer, key)
            if self._repeats.add(row, key, gold):
                self.findings.leave_out(REPEATED, row.where)
                return
            prompt = row.prompt if self.template is None else self.template(row.prompt)
            text, adds_special_tokens = self.codec.prompt_text(prompt)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from error
        if not self._parses(row, key, verifier, gold):
            return
        is_short = (
            bool(text.strip())
            and self.codec.takes_any_text
            and self.codec.most_tokens(text) <= self._longest_prompt
        )
        rendered = _Rendered(row, prompt, text, adds_special_tokens, key, is_short)
        if is_short and not self._waiting:
            self._keep(rendered, packer)
            return
        # Those behind it wait, too: rows are packed in their order.
        self._waiting.append(rendered)
        if len(self._waiting) >= _ROWS_PER_COUNT:
            self._settle(packer)

    def _keep(self, rendered: _Rendered, packer: Packer) -> None:
        row, prompt, text, adds_special_tokens, key, _ = rendered
        self.findings.num_made[row.source] += 1
        packer.add(row, text, adds_special_tokens, key, prompt, self.choice.level(row))

    def _settle(self, packer: Packer) -> None:
        """Counts the tokens of the rows that wait, and keeps those that are short enough."""
        waiting, self._waiting = self._waiting, []
        counts = self._count(waiting)
        for rendered in waiting:
            row, text = rendered.row, rendered.text
            if not rendered.is_short:
                num_tokens = next(counts)
                if not num_tokens:
                    raise InputError(f"{row.where}: the prompt {text!r} has no tokens")
                if num_tokens > self._longest_prompt:
                    self._too_long(row.where, num_tokens)
                    continue
            self._keep(rendered, packer)

    def _count(self, waiting: Sequence[_Rendered]) -> Iterator[int]:
        """Counts tokens of the prompts that may be too long. Raises InputError with the place of a row."""
        asked = [one for one in waiting if not one.is_short]
        for adds, some in itertools.groupby(asked, key=lambda one: one.adds_special_tokens):
            rows = list(some)
            try:
                yield from self.codec.count_tokens([one.text for one in rows], add_special_tokens=adds)
            except InputError:
                for one in rows:
                    yield self._count_one(one)

    def _count_one(self, rendered: _Rendered) -> int:
        try:
            return len(self.codec.encode(rendered.text, add_special_tokens=rendered.adds_special_tokens))
        except InputError as error:
            raise InputError(f"{rendered.row.where}: {error}") from error

    def _parses(self, row: Row, key: str, verifier: Verifier, known: ShortGold | None) -> bool:
        if known in self._known_golds:
            return True
        try:
            reference = self.verifiers.parse(verifier, row.answer, name=row.verifier.name, where=row.where)
        except ValueError as error:
            self._broken(row.where, f"{row.where}: {error}")
            return False
        example = GoldExample(row.where, row.verifier, row.answer, reference, told_row(row))
        self.verifiers.remember(example, key)
        if known is not None and len(self._known_golds) < MAX_KNOWN_GOLDS:
            self._known_golds.add(known)
        return True

    @cached_property
    def _openings(self) -> Openings:
        return Openings(self.verifiers.folder)

    @cached_property
    def _longest_prompt(self) -> int:
        """In tokens, the longest that is kept: one token of the context is left for the response."""
        return min(self.context_tokens - 1, self.data.max_prompt_tokens or sys.maxsize)

    def _made(self, packed: PackedTask) -> Task:
        tokens = self.codec.encode(packed.text, add_special_tokens=packed.adds_special_tokens)
        _, verifier = self._verifier(packed.verifier)
        with contextlib.redirect_stdout(sys.stderr):
            reference = reference_of(verifier, packed.answer)
        return Task(
            packed.task_id,
            packed.text,
            tokens,
            reference,
            packed.verifier,
            environment=packed.environment,
            messages=packed.messages,
            row=packed.columns,
        )

    def _verifier(self, spec: VerifierSpec) -> tuple[str, Verifier]:
        """Its key and itself, looked up once for rows in a row that share it."""
        if self._newest is None or self._newest[0] is not spec:
            self._newest = spec, key_of(spec), self.verifiers.get(spec)
            if not self.is_grouped:
                self.verifiers.check_alone(spec, self.key)
        return self._newest[1:]

    def _broken(self, where: str, complaint: str) -> None:
        if self.data.broken_rows == "refuse":
            # Verifiers often say what to do.
            way = "Or" if "Correct the row" in complaint else "Correct the row, or"
            raise InputError(
                f"{complaint.rstrip('.')}. {way} set data.broken_rows to leave_out; "
                f"`asyncrl verify-data` lists all such rows."
            )
        self.findings.leave_out(BROKEN, where)

    def _too_long(self, where: str, num_tokens: int) -> None:
        longest = self.data.max_prompt_tokens
        if self.data.long_prompts == "refuse" and longest is not None and num_tokens > longest:
            raise InputError(
                f"{where}: the prompt has {num_tokens} tokens, data.max_prompt_tokens is {longest}. Shorten "
                f"the prompt, raise data.max_prompt_tokens, or set data.long_prompts to leave_out."
            )
        if self.data.long_prompts == "refuse":
            raise InputError(
                f"{where}: the prompt has {num_tokens} tokens, the model's context {self.context_tokens}: no "
                f"room is left for a response. Shorten the prompt, raise model.context_tokens, or set "
                f"data.long_prompts to leave_out."
            )
        self.findings.leave_out(LONG, where)

    def _warn(self) -> None:
        # A filter is no mistake; `asyncrl check` shows its count.
        found = self.findings
        if num_amiss := found.left_out.total() - found.left_out[FILTERED]:
            log.warning(
                "WARNING: %s leaves out %d of %d rows: %s.",
                self.key,
                num_amiss,
                found.num_rows,
                found.reasons(without=FILTERED),
            )
        if found.num_contradicting:
            log.warning(
                "WARNING: %s has %d rows with the prompt of an earlier row but another answer, first %s: "
                "all are kept.",
                self.key,
                found.num_contradicting,
                found.first_contradicting,
            )
