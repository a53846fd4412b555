"""The rows that a stage learns: read, rendered and checked, all of them before anything starts.

Columns, by their own names or by those that `columns` of a source maps: messages, or prompt and response. A
row that `asyncrl select --tokens` wrote also brings prompt_tokens and response_tokens, with digests of what
rendered and tokenized them; where these are the run's, the tokens are learned as they were sampled, and
nothing is rendered.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from asyncrl.data.columns import NullColumn, column
from asyncrl.data.files import PublishedRow
from asyncrl.data.prompts import Prompt
from asyncrl.data.rows import check_prompt, labels_of, published_rows
from asyncrl.errors import InputError
from asyncrl.model.source import model_folder
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import ColumnMapping, Recipe, Source
from asyncrl.records import Task, VerifierSpec
from asyncrl.system.plugins import load_object
from asyncrl.system.words import as_written
from asyncrl.tasks.demonstration import (
    Demonstration,
    Pair,
    check_vocabulary,
    of_messages,
    of_response,
    of_tokens,
    pair_of,
)
from asyncrl.tasks.digests import template_digest, tokenizer_digest
from asyncrl.tasks.packed_rows import Findings
from asyncrl.tasks.task_list import ReadingStage, reading, template_of

log = logging.getLogger(__name__)
NO_VERIFIER = VerifierSpec("none")
"""Verifier of rows that nothing grades."""
_ROWS_PER_LOOK = 100
_COLUMNS = ("messages", "prompt", "response", "chosen", "rejected")


def train_demonstrations(
    recipe: Recipe, codec: TextCodec, context: int, vocabulary: int, stage: ReadingStage | None = None
) -> list[Task]:
    """The rows of data.train, each a task whose reference is its `Demonstration`. Raises InputError."""
    reader = DemonstrationReader("data.train", "train", recipe, codec, context, vocabulary, stage=stage)
    return reader.read(recipe.data.train_sources())


def heldout_demonstrations(
    recipe: Recipe, codec: TextCodec, context: int, vocabulary: int, stage: ReadingStage | None = None
) -> list[Task]:
    """The first evaluation.num_tasks rows of data.heldout, likewise."""
    reader = DemonstrationReader("data.heldout", "test", recipe, codec, context, vocabulary, stage=stage)
    reader.most = recipe.evaluation.num_tasks
    return reader.read(recipe.data.heldout_sources())


@dataclass
class DemonstrationReader:
    """Reads the rows of one key of `data`, and counts those that it leaves out."""

    key: str
    split: str
    recipe: Recipe
    codec: TextCodec
    context_tokens: int
    vocab_size: int
    most: int | None = None
    """Rows at most, of each source its share."""
    stage: ReadingStage | None = None
    findings: Findings = field(default_factory=Findings)

    def read(self, sources: Sequence[Source]) -> list[Task]:
        found: list[Task] = []
        with reading(self.key, self.stage) as show:
            for source, label in zip(sources, labels_of(sources, self.split), strict=True):
                own: list[Task] = []
                limit = None if self.most is None else max(1, self.most // len(sources))
                for row in self.rows(source):
                    if limit is not None and len(own) >= limit:
                        break
                    self.findings.num_rows += 1
                    if (made := self._made(row, source)) is not None:
                        own.append(self._task(made, f"{label}:{row.number}"))
                    if self.findings.num_rows % _ROWS_PER_LOOK == 0:
                        show(self.findings.num_rows)
                if not own:
                    raise InputError(f"{self.key} names {source.title()}, which holds no rows{self._why()}.")
                found += own
        if self.findings.left_out:
            log.warning(
                "WARNING: %s leaves out %d of %d rows%s.",
                self.key,
                self.findings.left_out.total(),
                self.findings.num_rows,
                self._why(),
            )
        return found

    def rows(self, source: Source) -> Iterator[PublishedRow]:
        return published_rows(source, self.key, self.split)

    def demonstration(self, row: PublishedRow, source: Source) -> Demonstration | Pair:
        """The row with its place in the message of what is wrong with it. Raises InputError."""
        try:
            columns = _columns(row.row, source)
            is_pair = self.recipe.stage == "dpo"
            made = self._pair(columns, row.where) if is_pair else self._demonstration(columns, row.where)
            for line in made.lines():
                check_vocabulary(line, self.vocab_size)
            return made
        except InputError as error:
            said = str(error)
            raise InputError(said if said.startswith(row.where) else f"{row.where}: {said}.") from error

    def _made(self, row: PublishedRow, source: Source) -> Demonstration | Pair | None:
        if not self.is_wanted(row):
            self.findings.leave_out("by data.filter", row.where)
            return None
        made, limit = self.demonstration(row, source), self.context_tokens
        longest = max(line.num_tokens() for line in made.lines())
        if longest <= limit:
            return made
        choice = getattr(self.recipe, self.recipe.stage).too_long
        if choice == "refuse":
            raise InputError(
                f"{row.where}: the row has {longest} tokens, model.context_tokens is {limit}. "
                f"Raise it, shorten the row, or set {self.recipe.stage}.too_long to cut or leave_out."
            )
        cut = made.cut(limit) if choice == "cut" and isinstance(made, Demonstration) else None
        if cut is None:
            self.findings.leave_out("too long", row.where)
        return cut

    def is_wanted(self, row: PublishedRow) -> bool:
        wanted = self.recipe.data.row_filter() if self.key == "data.train" else None
        if wanted is None:
            return True
        try:
            return wanted.holds({name: _value(row.row, name) for name in wanted.columns()})
        except (InputError, ValueError) as error:
            raise InputError(f"{row.where}: {error}. Correct the row, or data.filter.") from error

    def _demonstration(self, row: Mapping[str, Any], where: str) -> Demonstration:
        if self._has_tokens(row, "response"):
            return self._as_sampled(row, "response")
        last_alone = self.recipe.sft.loss_on == "response"
        if row.get("messages") is not None:
            messages = row["messages"]
            if not isinstance(messages, list):
                raise InputError(f'"messages" is {as_written(messages)[:80]}, expected a list of messages')
            check_prompt(messages, where, name="messages")
            return of_messages(self.codec, messages, last_alone=last_alone)
        prompt, response = self._asked(row, where), row.get("response")
        if not isinstance(response, str):
            raise InputError(f'"response" is {as_written(response)[:80]}, expected text')
        return of_response(self.codec, prompt, response)

    def _pair(self, row: Mapping[str, Any], where: str) -> Pair:
        return pair_of(self._side(row, "chosen", where), self._side(row, "rejected", where))

    def _side(self, row: Mapping[str, Any], name: str, where: str) -> Demonstration:
        """One response of a pair: text behind the prompt, or the last message of a conversation."""
        if self._has_tokens(row, name):
            return self._as_sampled(row, name)
        said = row.get(name)
        if isinstance(said, str):
            return of_response(self.codec, self._asked(row, where), said, name=name)
        if not isinstance(said, list):
            raise InputError(f'"{name}" is {as_written(said)[:80]}, expected text or a list of messages')
        check_prompt(said, where, name=name)
        return of_messages(self.codec, said, last_alone=True)

    def _has_tokens(self, row: Mapping[str, Any], name: str) -> bool:
        """Whether the row brings tokens of this response that the run's template and tokenizer made."""
        if row.get(f"{name}_tokens") is None:
            return False
        return (row.get("from_template"), row.get("from_tokenizer")) == self._digests

    def _as_sampled(self, row: Mapping[str, Any], name: str) -> Demonstration:
        tokens, are_sampled = row[f"{name}_tokens"], row.get(f"{name}_sampled")
        return of_tokens(row.get("prompt_tokens"), tokens, are_sampled, name=name)

    @functools.cached_property
    def _digests(self) -> tuple[str, str]:
        """Those of the run's own template and tokenizer."""
        return template_digest(self.recipe, self.codec), tokenizer_digest(model_folder(self.recipe.model))

    def _asked(self, row: Mapping[str, Any], where: str) -> Prompt:
        """The row's prompt through the recipe's template."""
        prompt = row.get("prompt")
        if prompt is None:
            held = ", ".join(map(str, row)) or "no keys"
            raise InputError(f"the row has {held}, expected messages, or prompt and response")
        check_prompt(prompt, where)
        template = template_of(self.recipe)
        return prompt if template is None else template(prompt)

    def _task(self, made: Demonstration | Pair, task_id: str) -> Task:
        tokens = made.prompt_tokens
        return Task(task_id, self.codec.exact_text(tokens), tokens, made, NO_VERIFIER)

    def _why(self) -> str:
        said = self.findings.reasons()
        return f": {said}" if said else ""


def _columns(row: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """The row by the names of our columns. Raises InputError."""
    given = source.columns
    if isinstance(given, ColumnMapping):
        named = {name: getattr(given, name) for name in _COLUMNS}
        return {name: _value(row, path) for name, path in named.items() if path is not None}
    if given == "asyncrl":
        return row
    if ":" not in given:
        raise InputError(
            f'columns are "{given}", which have no response. Write a mapping with messages, or prompt and '
            f"response, or a function"
        )
    made = cast(Callable[[Mapping[str, Any]], Any], load_object(given))(row)
    if not isinstance(made, dict):
        raise InputError(f"columns made {as_written(made)[:80]} of the row, expected an object")
    return made


def _value(row: Mapping[str, Any], path: str) -> Any:
    try:
        return column(row, path)
    except (KeyError, NullColumn):
        raise InputError(f'no "{path}" in the row, which has {", ".join(map(str, row))}') from None
