"""Task files -> Tasks. Every row is checked before anything starts; an error names its file and line.

The order of tasks is a pure function of (seed, position): the number of admitted groups says which come next.
"""

import codecs
import contextlib
import difflib
import json
import pickle
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe, Verifying
from asyncrl.recipe.file import PATH_RULE, absolute_object
from asyncrl.records import Task, VerifierSpec
from asyncrl.rollout.text import TextCodec
from verifiers.registry import load_verifier
from verifiers.storable import storable
from verifiers.verifier import CheckedVerifier, Verifier, VerifierUnavailable


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a data file, parsed but not yet understood."""

    path: Path
    line: int
    prompt: str | list[dict[str, Any]]
    answer: Any
    verifier: VerifierSpec

    def where(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Example:
    """A row to try its verifier on."""

    where: str
    verifier: VerifierSpec
    gold: Any
    reference: Any
    """What the verifier made of the gold."""


class VerifierCache:
    """Verifiers by specification: rows that name the same one share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, Verifier] = {}
        self.examples: dict[str, Example] = {}
        """The first row of each specification."""

    def remember(self, row: Row, reference: Any) -> None:
        """Keeps the row as an example of its verifier when it is the first."""
        key = _key(row.verifier)
        if key not in self.examples:
            self.examples[key] = Example(row.where(), row.verifier, row.answer, reference)

    def get(self, spec: VerifierSpec) -> Verifier:
        """Raises InputError when there is no such verifier."""
        key = _key(spec)
        if key not in self._loaded:
            try:
                self._loaded[key] = load_verifier(spec.name, spec.options, folder=self.folder)
            except (ValueError, TypeError, ImportError) as error:
                raise InputError(
                    f'verifier "{spec.name}" with options {dict(spec.options)}: {error}'
                ) from error
        return self._loaded[key]

    def check_machine(self) -> None:
        """Raises InputError when a verifier that the rows name could give no verdict on this machine."""
        for key, verifier in self._loaded.items():
            if isinstance(verifier, CheckedVerifier):
                try:
                    verifier.check_machine()
                except VerifierUnavailable as error:
                    raise InputError(f'verifier "{json.loads(key)[0]}" cannot work here. {error}') from error

    def close(self) -> None:
        """Ends what a check of the machine or a trial has started; the next use starts it again."""
        for verifier in self._loaded.values():
            close = getattr(verifier, "close", None)
            if callable(close):
                close()


def _key(spec: VerifierSpec) -> str:
    return json.dumps([spec.name, spec.options], sort_keys=True, default=str)


def read_rows(path: Path, verifying: Verifying) -> Iterator[Row]:
    """The rows of a JSONL file in UTF-8, with or without a byte order mark.

    Raises InputError with file and line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"data file {path} does not exist. Set data.train / data.heldout to a JSONL file. {PATH_RULE}"
        ) from None
    except OSError as error:
        raise InputError(f"data file {path} cannot be read: {error}") from error
    # JSON may hold other characters that end a line of text, such as U+2028, as they are.
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            yield _parse_row(path, number, line, verifying)


def _parse_row(path: Path, number: int, line: bytes, verifying: Verifying) -> Row:
    where = f"{path}:{number}"
    raw = _parse_json(line, where)
    if not isinstance(raw, dict):
        raise InputError(f'{where}: {type(raw).__name__}, expected an object with "prompt" and "answer"')
    for key in ("prompt", "answer"):
        if key not in raw:
            meant = _nearest_key(key, raw)
            raise InputError(f'{where}: no "{key}"; the row has {", ".join(raw) or "no keys"}.{meant}')
    # A row may have more keys than we read, so only what looks like a slip is refused.
    if "verifier" not in raw and (meant := _nearest_key("verifier", raw)):
        raise InputError(f"{where}: the row has {', '.join(raw)}.{meant}")
    prompt = raw["prompt"]
    if isinstance(prompt, list) and prompt:
        for position, message in enumerate(prompt):
            _check_message(message, f"{where}: message {position + 1}", is_last=position == len(prompt) - 1)
    elif not (isinstance(prompt, str) and prompt):
        raise InputError(
            f'{where}: "prompt" is {str(prompt)[:80]!r}, expected text or a list of chat messages'
        )
    return Row(path, number, prompt, raw["answer"], _verifier_spec(raw.get("verifier"), where, verifying))


def _parse_json(line: bytes, where: str) -> Any:
    try:
        text = line.decode("utf-8")
        raw = json.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8: {error}. Save the file as UTF-8.") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: not JSON that can be read: it is nested too deeply") from None
    if "\\u" in text:
        try:
            json.dumps(raw, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise InputError(
                f"{where}: {half} is half of a surrogate pair, which is no character. Write the character "
                f"itself, or both halves."
            ) from None
    return raw


def _check_message(message: Any, where: str, *, is_last: bool) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError(
            f'{where} is {str(message)[:80]!r}, expected an object with "role" and "content", both text'
        )
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls") and not is_last):
        return
    if "content" not in message:
        raise InputError(f'{where} has no "content"; it has {", ".join(message)}')
    if isinstance(content, list):
        raise InputError(f'{where}: "content" is a list of parts, expected text. Join the texts to one.')
    raise InputError(f'{where}: "content" is {str(content)[:80]!r}, expected text')


def _nearest_key(key: str, raw: dict[str, Any]) -> str:
    """' Did you mean ...' where the row has a key that is almost `key`, with a value that it might have."""
    kinds = (str, dict) if key == "verifier" else (object,)
    near = [name for name in difflib.get_close_matches(key, raw, cutoff=0.8) if isinstance(raw[name], kinds)]
    return f' Did you mean "{key}" where it says "{near[0]}"?' if near else ""


def _verifier_spec(raw: Any, where: str, verifying: Verifying) -> VerifierSpec:
    if raw is None:
        return VerifierSpec(verifying.default, verifying.options)
    if isinstance(raw, str):
        is_default = absolute_object(raw, verifying.own_files()) == verifying.default
        options = verifying.options if raw == verifying.default or is_default else {}
        return VerifierSpec(raw, options)
    if isinstance(raw, dict) and isinstance(raw.get("name"), str) and raw.keys() <= {"name", "options"}:
        options = raw.get("options") or {}
        if isinstance(options, dict):
            return VerifierSpec(raw["name"], options)
    raise InputError(
        f'{where}: "verifier" is {str(raw)[:80]!r}, expected a name or {{"name": ..., "options": ...}}'
    )


def read_tasks(
    path: Path, *, verifying: Verifying, codec: TextCodec, verifiers: VerifierCache, context_tokens: int
) -> list[Task]:
    """The tasks of a data file, each with its reference parsed and its prompt known to fit.

    Raises InputError for an empty file, a prompt that leaves no room in `context_tokens`, or an answer that
    its verifier cannot parse.
    """
    # What a verifier prints is no part of what a command prints.
    with contextlib.redirect_stdout(sys.stderr):
        tasks = [_task(row, codec, verifiers, context_tokens) for row in read_rows(path, verifying)]
    if not tasks:
        raise InputError(f"data file {path} holds no rows.")
    return tasks


def _task(row: Row, codec: TextCodec, verifiers: VerifierCache, context_tokens: int) -> Task:
    try:
        text, tokens = codec.render_prompt(row.prompt)
        reference = verifiers.get(row.verifier).parse_reference(row.answer)
    except ValueError as error:
        raise InputError(f"{row.where()}: {error}") from error
    verifiers.remember(row, reference)
    if not tokens:
        raise InputError(f"{row.where()}: the prompt {text!r} has no tokens")
    if len(tokens) >= context_tokens:
        raise InputError(
            f"{row.where()}: the prompt has {len(tokens)} tokens, the model's context {context_tokens}: no "
            f"room is left for a response. Shorten the prompt or raise model.context_tokens."
        )
    return Task(f"{row.path.stem}:{row.line}", text, tokens, reference, row.verifier)


def read_train_tasks(
    recipe: Recipe, codec: TextCodec, verifiers: VerifierCache, context_tokens: int
) -> list[Task]:
    return read_tasks(
        Path(recipe.data.train),
        verifying=recipe.verifying,
        codec=codec,
        verifiers=verifiers,
        context_tokens=context_tokens,
    )


def read_heldout_tasks(
    recipe: Recipe, codec: TextCodec, verifiers: VerifierCache, context_tokens: int
) -> list[Task]:
    """At most evaluation.num_tasks held-out tasks, the first of the file; none without data.heldout."""
    if recipe.data.heldout is None:
        return []
    tasks = read_tasks(
        Path(recipe.data.heldout),
        verifying=recipe.verifying,
        codec=codec,
        verifiers=verifiers,
        context_tokens=context_tokens,
    )
    return tasks[: recipe.evaluation.num_tasks]


class TaskOrder:
    """Position -> task, epoch after epoch: permutations seeded by (seed, epoch), or the file's order."""

    def __init__(self, tasks: list[Task], *, seed: int, is_shuffled: bool) -> None:
        self._tasks = tasks
        self._by_id = {task.task_id: task for task in tasks}
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._permutation = lru_cache(maxsize=2)(self._make_permutation)
        self._by_prompt = lru_cache(maxsize=1)(self._index_prompts)

    def at(self, position: int) -> Task:
        epoch, offset = divmod(position, len(self._tasks))
        return self._tasks[self._permutation(epoch)[offset]]

    def find(self, task_id: str, prompt: str, *, may_have_moved: bool = False) -> Task:
        """The task that a journal calls `task_id`: the prompt decides, wherever its row stands now.

        `may_have_moved`: the file is not the one that the journal's task ids come from. Raises InputError
        when the data no longer holds the prompt, or holds it with several answers.
        """
        task = self._by_id.get(task_id)
        if task is not None and storable(task.prompt) == prompt and not may_have_moved:
            return task
        found = self._by_prompt().get(prompt, [])
        asked = f"its journal holds unfinished answers to {task_id}, {prompt[:80]!r}"
        if not found:
            raise InputError(
                f"data.train has changed since the run began: {asked}, and no row asks that any more. Put "
                f"the row back (its place in the file does not matter), or start afresh with another "
                f"run_folder."
            )
        if len({pickle.dumps((t.reference, t.verifier)) for t in found}) > 1:
            raise InputError(
                f"data.train has changed since the run began: {asked}, which now several rows ask with "
                f"different answers ({', '.join(t.task_id for t in found[:5])}). Put the file back as it "
                f"was, or start afresh with another run_folder."
            )
        return found[0]

    def _index_prompts(self) -> dict[str, list[Task]]:
        found: dict[str, list[Task]] = {}
        for task in self._tasks:
            found.setdefault(storable(task.prompt), []).append(task)
        return found

    def _make_permutation(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        if self._is_shuffled:
            random.Random(f"{self._seed}-{epoch}").shuffle(order)
        return order
