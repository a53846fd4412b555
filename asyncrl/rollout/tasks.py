"""Rows of data -> Tasks. Every row is checked before anything starts; an error names its place."""

import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from asyncrl.data.order import MixturePart
from asyncrl.data.prompts import Prompt, PromptTemplate
from asyncrl.data.rows import Row, Unanswered, heldout_rows, train_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Data, Recipe, Source
from asyncrl.records import Task, VerifierSpec
from asyncrl.rollout.text import TextCodec
from asyncrl.rollout.verifier_cache import VerifierCache, key_of
from verifiers.verifier import Verifier

log = logging.getLogger(__name__)

REPEATED, BROKEN, LONG = (
    "repeated",
    "without an answer that can be parsed",
    "with too long a prompt",
)


@dataclass(frozen=True, slots=True)
class TaskSet:
    tasks: list[Task]
    parts: tuple[MixturePart, ...] = ()
    """The sources that `tasks` come from, one after the other, where they have weights."""


def template_of(recipe: Recipe) -> PromptTemplate | None:
    """The template of all prompts; None leaves them as they are. Raises InputError."""
    if recipe.prompt is None:
        return None
    examples = [example.model_dump() for example in recipe.prompt.examples]
    section = recipe.prompt
    return PromptTemplate(section.template, system=section.system, suffix=section.suffix, examples=examples)


def read_train_tasks(
    recipe: Recipe, codec: TextCodec, verifiers: VerifierCache, context_tokens: int
) -> TaskSet:
    """Raises InputError for a source without rows, and for a row that cannot be used."""
    maker = TaskMaker("data.train", recipe.data, codec, verifiers, context_tokens, template_of(recipe))
    sources = recipe.data.train_sources()
    tasks = maker.make(train_rows(recipe.data, recipe.verifying), sources)
    if sources[0].weight is None:
        return TaskSet(tasks)
    parts = [MixturePart(maker.num_made[i], source.weight or 1.0) for i, source in enumerate(sources)]
    return TaskSet(tasks, tuple(parts))


def read_heldout_tasks(
    recipe: Recipe, codec: TextCodec, verifiers: VerifierCache, context_tokens: int
) -> list[Task]:
    """At most evaluation.num_tasks held-out tasks, the first ones; none without data.heldout."""
    maker = TaskMaker("data.heldout", recipe.data, codec, verifiers, context_tokens, template_of(recipe))
    tasks = maker.make(heldout_rows(recipe.data, recipe.verifying), recipe.data.heldout_sources())
    return tasks[: recipe.evaluation.num_tasks]


@dataclass
class TaskMaker:
    """Makes the tasks of data.train or data.heldout, and counts the rows that it leaves out."""

    key: str
    data: Data
    codec: TextCodec
    verifiers: VerifierCache
    context_tokens: int
    template: Callable[[Prompt], Prompt] | None = None
    num_rows: int = 0
    num_made: Counter[int] = field(default_factory=Counter)
    """By index of the source."""
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Of each reason, the first row."""
    contradicting: list[str] = field(default_factory=list)
    """Where rows stand that ask what an earlier row asks, with another answer."""
    _answers: dict[str, str] = field(default_factory=dict)
    _other_answers: set[tuple[str, str]] = field(default_factory=set)
    _newest: tuple[VerifierSpec, str, Verifier] | None = None

    def make(self, rows: Iterable[Row | Unanswered], sources: Sequence[Source]) -> list[Task]:
        """Raises InputError."""
        # What a verifier prints is no part of what a command prints.
        with contextlib.redirect_stdout(sys.stderr):
            made = (self._task(row) for row in rows)
            tasks = [task for task in made if task is not None]
        for index, source in enumerate(sources):
            if not self.num_made[index]:
                why = f" that can be used: {self._reasons()}" if self.left_out else ""
                raise InputError(f"{self.key} names {source.title()}, which holds no rows{why}.")
        self._warn()
        return tasks

    def _task(self, row: Row | Unanswered) -> Task | None:
        self.num_rows += 1
        if isinstance(row, Unanswered):
            self._broken(row.where, row.complaint)
            return None
        try:
            key, verifier = self._verifier(row.verifier)
            if self._is_repeated(row, key):
                self._leave_out(REPEATED, row.where)
                return None
            prompt = row.prompt if self.template is None else self.template(row.prompt)
            text, tokens = self.codec.render_prompt(prompt)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from error
        try:
            reference = verifier.parse_reference(row.answer)
        except ValueError as error:
            self._broken(row.where, f"{row.where}: {error}")
            return None
        if not tokens:
            raise InputError(f"{row.where}: the prompt {text!r} has no tokens")
        longest = self.data.max_prompt_tokens
        if len(tokens) >= self.context_tokens or (longest is not None and len(tokens) > longest):
            self._too_long(row.where, len(tokens))
            return None
        self.verifiers.remember(row, reference, key)
        self.num_made[row.source] += 1
        return Task(row.row_id, text, tokens, reference, row.verifier)

    def _verifier(self, spec: VerifierSpec) -> tuple[str, Verifier]:
        """Its key and itself, looked up once for rows in a row that share it."""
        if self._newest is None or self._newest[0] is not spec:
            self._newest = spec, key_of(spec), self.verifiers.get(spec)
        return self._newest[1:]

    def _is_repeated(self, row: Row, verifier_key: str) -> bool:
        prompt = row.prompt if isinstance(row.prompt, str) else json.dumps(row.prompt, default=str)
        answer = json.dumps([row.answer, verifier_key], sort_keys=True, default=str)
        known = self._answers.setdefault(prompt, answer)
        if known is answer:
            return False
        if known == answer or (prompt, answer) in self._other_answers:
            return True
        self._other_answers.add((prompt, answer))
        self.contradicting.append(row.where)
        return False

    def _broken(self, where: str, complaint: str) -> None:
        if self.data.broken_rows == "refuse":
            raise InputError(
                f"{complaint.rstrip('.')}. Correct the row, or set data.broken_rows to leave_out; "
                f"`asyncrl verify-data` lists all such rows."
            )
        self._leave_out(BROKEN, where)

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
        self._leave_out(LONG, where)

    def _leave_out(self, reason: str, where: str) -> None:
        self.left_out[reason] += 1
        self.first.setdefault(reason, where)

    def _reasons(self) -> str:
        return ", ".join(
            f"{count} {reason} (first {self.first[reason]})" for reason, count in self.left_out.items()
        )

    def _warn(self) -> None:
        if self.left_out:
            log.warning(
                "WARNING: %s leaves out %d of %d rows: %s.",
                self.key,
                self.left_out.total(),
                self.num_rows,
                self._reasons(),
            )
        if self.contradicting:
            log.warning(
                "WARNING: %s has %d rows that ask what an earlier row asks, with another answer, first %s: "
                "all are kept.",
                self.key,
                len(self.contradicting),
                self.contradicting[0],
            )
