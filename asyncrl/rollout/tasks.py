"""Rows of data -> tasks. Every row is checked before anything starts; an error names its place.

A row is read, mapped to its columns and rendered once, and packed. Its gold is parsed, but a gold that other
rows have, too, only once. Its tokens are counted only where its bytes leave a doubt that it is short enough;
tokens and parsed gold of a task are made when it is asked.
"""

import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from asyncrl.data.mixture import fair_shares
from asyncrl.data.order import MixturePart
from asyncrl.data.packed import Findings, PackedTask, PackedTasks, Packer, load_packed
from asyncrl.data.prompts import Prompt, PromptTemplate
from asyncrl.data.rows import Row, Unanswered, heldout_rows, train_rows
from asyncrl.data.table import TaskTable
from asyncrl.errors import InputError
from asyncrl.observe.late_stage import LateStage
from asyncrl.recipe import Data, Recipe, Source
from asyncrl.records import Task, VerifierSpec
from asyncrl.rollout.table_name import table_name, tables_folder
from asyncrl.rollout.text import TextCodec
from asyncrl.rollout.verifier_cache import GoldExample, VerifierCache, key_of
from verifiers.verifier import Verifier

log = logging.getLogger(__name__)

REPEATED, BROKEN, LONG = (
    "repeated",
    "without an answer that can be parsed",
    "with too long a prompt",
)
_ROWS_PER_LOOK = 500
"""Between two looks at the clock."""
_MAX_KNOWN_GOLDS = 200_000
_MAX_KNOWN_CHARACTERS = 200
"""Of a gold that is remembered as one that parses."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    tasks: TaskTable
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
    sources = recipe.data.train_sources()
    rows = train_rows(recipe.data, recipe.verifying)
    maker = TaskMaker("data.train", recipe.data, codec, verifiers, context_tokens, template_of(recipe))
    name = table_name(recipe, codec, context_tokens)
    tasks = maker.make(rows, sources, name=name)
    if sources[0].weight is None:
        return TaskSet(tasks)
    parts = [MixturePart(maker.num_made[i], source.weight or 1.0) for i, source in enumerate(sources)]
    return TaskSet(tasks, tuple(parts))


def read_heldout_tasks(
    recipe: Recipe, codec: TextCodec, verifiers: VerifierCache, context_tokens: int
) -> list[Task]:
    """At most evaluation.num_tasks held-out tasks; none without data.heldout.

    Of each source its first ones, as many of one as of another or as their weights say; what a short source
    leaves free, the others fill. Raises InputError, also where a source would get no task.
    """
    maker = TaskMaker("data.heldout", recipe.data, codec, verifiers, context_tokens, template_of(recipe))
    sources = recipe.data.heldout_sources()
    tasks = maker.make(heldout_rows(recipe.data, recipe.verifying), sources)
    sizes = [maker.num_made[index] for index in range(len(sources))]
    limit = recipe.evaluation.num_tasks
    shares = fair_shares(sizes, [source.weight or 1.0 for source in sources], limit)
    if 0 in shares:
        starved = sources[shares.index(0)].title()
        raise InputError(
            f"evaluation.num_tasks is {limit}, which leaves no task for {starved} of data.heldout. "
            f"Raise evaluation.num_tasks, or the weight of that source."
        )
    chosen: list[Task] = []
    start = 0
    for size, share in zip(sizes, shares, strict=True):
        chosen += tasks[start : start + share]
        start += size
    return chosen


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
    num_contradicting: int = 0
    """Rows that ask what an earlier row asks, with another answer."""
    first_contradicting: str = ""
    _answers: dict[bytes, bytes] = field(default_factory=dict)
    """Digest of each prompt -> digest of its first answer."""
    _other_answers: set[bytes] = field(default_factory=set)
    _known_golds: set[tuple[str, type, object]] = field(default_factory=set)
    """(verifier, kind, gold) of golds that parse."""
    _newest: tuple[VerifierSpec, str, Verifier] | None = None

    def make(
        self, rows: Iterable[Row | Unanswered], sources: Sequence[Source], *, name: str | None = None
    ) -> TaskTable:
        """Raises InputError. An earlier start may have kept the rows under `name`, and a later one finds them
        there."""
        packed = None if name is None else load_packed(tables_folder() / name)
        # What a verifier prints is no part of what a command prints.
        with contextlib.redirect_stdout(sys.stderr):
            if packed is None:
                packed = self._pack(rows, name)
            else:
                self._recall(packed)
        for index, source in enumerate(sources):
            if not self.num_made[index]:
                why = f" that can be used: {self._reasons()}" if self.left_out else ""
                raise InputError(f"{self.key} names {source.title()}, which holds no rows{why}.")
        self._warn()
        return TaskTable(packed, self._made)

    def _pack(self, rows: Iterable[Row | Unanswered], name: str | None) -> PackedTasks:
        packer = Packer(tables_folder())
        try:
            with LateStage(f"reading {self.key}") as progress:
                for row in rows:
                    self._add(row, packer)
                    if self.num_rows % _ROWS_PER_LOOK == 0:
                        progress.show(f"{self.num_rows:,} rows")
                return packer.finish(self._findings(), name)
        except BaseException:
            packer.discard()
            raise
        finally:
            self._answers.clear()
            self._other_answers.clear()

    def _findings(self) -> Findings:
        return Findings(
            self.num_rows,
            dict(self.num_made),
            dict(self.left_out),
            self.first,
            self.num_contradicting,
            self.first_contradicting,
        )

    def _recall(self, packed: PackedTasks) -> None:
        """What an earlier start found in the same rows, and an example for each of their verifiers."""
        found = packed.findings
        self.num_rows, self.num_made = found.num_rows, Counter(found.num_made)
        self.left_out, self.first = Counter(found.left_out), found.first
        self.num_contradicting = found.num_contradicting
        self.first_contradicting = found.first_contradicting
        for index, where in packed.examples:
            row = packed.row(index)
            key, verifier = self._verifier(row.verifier)
            reference = verifier.parse_reference(row.answer)
            self.verifiers.remember(GoldExample(where, row.verifier, row.answer, reference), key)

    def _add(self, row: Row | Unanswered, packer: Packer) -> None:
        self.num_rows += 1
        if isinstance(row, Unanswered):
            self._broken(row.where, row.complaint)
            return
        try:
            key, verifier = self._verifier(row.verifier)
            if self._is_repeated(row, key):
                self._leave_out(REPEATED, row.where)
                return
            prompt = row.prompt if self.template is None else self.template(row.prompt)
            text, adds_special_tokens = self.codec.prompt_text(prompt)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from error
        if not self._parses(row, key, verifier) or not self._fits(row, text, adds_special_tokens):
            return
        self.num_made[row.source] += 1
        packer.add(row, text, adds_special_tokens, key)

    def _parses(self, row: Row, key: str, verifier: Verifier) -> bool:
        gold = row.answer
        is_short = isinstance(gold, (int, float)) or (
            isinstance(gold, str) and len(gold) <= _MAX_KNOWN_CHARACTERS
        )
        known = (key, type(gold), gold) if is_short else None
        if known in self._known_golds:
            return True
        try:
            reference = verifier.parse_reference(gold)
        except ValueError as error:
            self._broken(row.where, f"{row.where}: {error}")
            return False
        self.verifiers.remember(GoldExample(row.where, row.verifier, gold, reference), key)
        if known is not None and len(self._known_golds) < _MAX_KNOWN_GOLDS:
            self._known_golds.add(known)
        return True

    def _fits(self, row: Row, text: str, adds_special_tokens: bool) -> bool:
        longest = self._longest_prompt()
        if text.strip() and self.codec.most_tokens(text) <= longest:
            return True
        try:
            num_tokens = len(self.codec.encode(text, add_special_tokens=adds_special_tokens))
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from error
        if not num_tokens:
            raise InputError(f"{row.where}: the prompt {text!r} has no tokens")
        if num_tokens > longest:
            self._too_long(row.where, num_tokens)
            return False
        return True

    def _longest_prompt(self) -> int:
        """In tokens, the longest that is kept: one token of the context is left for the response."""
        return min(self.context_tokens - 1, self.data.max_prompt_tokens or sys.maxsize)

    def _made(self, packed: PackedTask) -> Task:
        tokens = self.codec.encode(packed.text, add_special_tokens=packed.adds_special_tokens)
        _, verifier = self._verifier(packed.verifier)
        with contextlib.redirect_stdout(sys.stderr):
            reference = verifier.parse_reference(packed.answer)
        return Task(packed.task_id, packed.text, tokens, reference, packed.verifier)

    def _verifier(self, spec: VerifierSpec) -> tuple[str, Verifier]:
        """Its key and itself, looked up once for rows in a row that share it."""
        if self._newest is None or self._newest[0] is not spec:
            self._newest = spec, key_of(spec), self.verifiers.get(spec)
        return self._newest[1:]

    def _is_repeated(self, row: Row, verifier_key: str) -> bool:
        asked, answered = _digest(row.prompt), _digest(row.answer, verifier_key)
        known = self._answers.setdefault(asked, answered)
        if known is answered:
            return False
        if known == answered or asked + answered in self._other_answers:
            return True
        self._other_answers.add(asked + answered)
        self.num_contradicting += 1
        self.first_contradicting = self.first_contradicting or row.where
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
        if self.num_contradicting:
            log.warning(
                "WARNING: %s has %d rows that ask what an earlier row asks, with another answer, first %s: "
                "all are kept.",
                self.key,
                self.num_contradicting,
                self.first_contradicting,
            )


def _digest(value: Any, verifier_key: str = "") -> bytes:
    if isinstance(value, str):
        text = f"text {verifier_key} {value}"
    else:
        text = f"JSON {verifier_key} {json.dumps(value, sort_keys=True, default=str)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
