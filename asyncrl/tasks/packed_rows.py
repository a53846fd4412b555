"""Checked rows in few bytes: what tasks are made of, packed while data is read, and kept for the next start.

A million rows as Python objects take gigabytes. Here a row is its text and answer in one run of bytes, and 24
bytes of numbers. Above SPILL_BYTES the run is a file, mapped into memory where it is read.
"""

import heapq
import json
import logging
import marshal
import mmap
import os
import shutil
import tempfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from asyncrl.data.row_use import json_columns
from asyncrl.data.rows import Prompt, Row
from asyncrl.errors import InputError
from asyncrl.records import EnvironmentSpec, VerifierSpec
from verifiers.registry import BUILT_IN
from verifiers.storable import storable

log = logging.getLogger(__name__)

SPILL_BYTES = 64 * 2**20
"""Most bytes of packed rows in memory. Larger data is a file in the cache, which the next start reuses."""
KEPT_ROWS = 50_000
"""Rows read that make a file worthwhile, too, however few of them are left."""
NUM_LONGEST = 256
"""Rows whose tokens are counted for the longest prompt: those with the most bytes."""
KEPT_TABLES = 4
_COLUMNS = ("ends", "numbers", "prompt_keys")
_LEVELS = "levels"


@dataclass(slots=True)
class Findings:
    """Findings from reading the rows, as far as they are JSON: they are stored with the rows."""

    num_rows: int = 0
    num_made: Counter[int] = field(default_factory=Counter)
    """Tasks by index of the source."""
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Reason -> the first row."""
    num_contradicting: int = 0
    """Rows with the prompt of an earlier row and another answer."""
    first_contradicting: str = ""

    def leave_out(self, reason: str, where: str) -> None:
        self.left_out[reason] += 1
        self.first.setdefault(reason, where)

    def reasons(self, *, without: str = "") -> str:
        """How many rows were left out for each reason but `without`, with the first one."""
        counts = ((reason, count) for reason, count in self.left_out.items() if reason != without)
        return ", ".join(f"{count} {reason} (first {self.first[reason]})" for reason, count in counts)


@dataclass(slots=True)
class PackedTask:
    task_id: str
    text: str
    """The rendered prompt."""
    adds_special_tokens: bool
    """Whether the tokenizer adds its special tokens to the text."""
    answer: Any
    """The row's, not parsed."""
    verifier: VerifierSpec
    environment: EnvironmentSpec | None = None
    messages: tuple[dict[str, Any], ...] = ()
    """The prompt as chat messages, where its columns are kept."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Empty where nothing reads them."""


@dataclass(slots=True)
class PackedTasks:
    """Rows in the order of their sources. R rows."""

    rows: bytes | mmap.mmap = b""
    """Marshalled rows: text, adds_special_tokens, answer, index of its verifier; and where its columns are
    kept index of its environment, messages, columns."""
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    """[R] where a row ends in `rows`."""
    numbers: "array[int]" = field(default_factory=lambda: array("Q"))
    """[R] line or number of the row in its source; growing within a source."""
    prompt_keys: "array[int]" = field(default_factory=lambda: array("Q"))
    """[R] digest of the text."""
    labels: list[str] = field(default_factory=list)
    """Label of each source that has rows, for the ids of its tasks."""
    starts: list[int] = field(default_factory=list)
    """First row of each source that has rows."""
    specs: list[VerifierSpec] = field(default_factory=list)
    examples: list[tuple[int, str]] = field(default_factory=list)
    """First row of each verifier, and where it stands."""
    longest: list[int] = field(default_factory=list)
    """The rows with the most bytes of text."""
    findings: Findings = field(default_factory=Findings)
    odd: dict[int, Any] = field(default_factory=dict)
    """Answers that cannot be marshalled, by row."""
    environments: list[EnvironmentSpec] = field(default_factory=list)
    levels: "array[float]" = field(default_factory=lambda: array("d"))
    """[R] how hard each row is, where something asks that."""

    def __len__(self) -> int:
        return len(self.ends)

    def row(self, index: int) -> PackedTask:
        start = self.ends[index - 1] if index else 0
        text, adds, answer, spec, *kept = marshal.loads(self.rows[start : self.ends[index]])
        label = self.labels[bisect_right(self.starts, index) - 1]
        task_id = f"{label}:{self.numbers[index]}"
        found = PackedTask(task_id, text, adds, self.odd.get(index, answer), self.specs[spec])
        if kept:
            environment, messages, found.columns = kept
            found.messages = tuple(messages)
            found.environment = None if environment is None else self.environments[environment]
        return found


def prompt_key(text: str) -> int:
    """64 bits of the text as a journal stores it; different texts may, if hardly ever, have the same."""
    return int.from_bytes(blake2b(storable(text).encode(), digest_size=8).digest())


class Packer:
    """Packs rows as they come, those of one source after those of another."""

    def __init__(self, cache: Path) -> None:
        """`cache`: the folder of tables, for rows of more than SPILL_BYTES."""
        self._cache = cache
        self._part: Path | None = None
        self._rows = bytearray()
        self._num_spilled = 0
        self._packed = PackedTasks()
        self._spec_indices: dict[str, int] = {}
        self._environment_indices: dict[str, int] = {}
        self._longest: list[tuple[int, int]] = []

    def add(
        self,
        row: Row,
        text: str,
        adds_special_tokens: bool,
        spec_key: str,
        prompt: Prompt = "",
        level: float | None = None,
    ) -> None:
        """`text` is the rendered `prompt`; `spec_key` is the same for rows of the same verifier. All rows
        have a `level`, or none has."""
        packed = self._packed
        if level is not None:
            packed.levels.append(level)
        label, _, number = row.row_id.rpartition(":")
        index = len(packed)
        if not packed.labels or packed.labels[-1] != label:
            packed.labels.append(label)
            packed.starts.append(index)
        if spec_key not in self._spec_indices:
            self._spec_indices[spec_key] = len(packed.specs)
            packed.specs.append(row.verifier)
            packed.examples.append((index, row.where))
        position = self._spec_indices[spec_key]
        kept = () if row.columns is None else self._kept(row, prompt)
        try:
            self._rows += marshal.dumps((text, adds_special_tokens, row.answer, position, *kept))
        except ValueError:
            packed.odd[index] = row.answer
            self._rows += marshal.dumps((text, adds_special_tokens, None, position, *kept))
        packed.ends.append(self._num_spilled + len(self._rows))
        packed.numbers.append(int(number))
        packed.prompt_keys.append(prompt_key(text))
        self._note_length(len(text) if text.isascii() else len(text.encode("utf-8", "replace")), index)
        if len(self._rows) > SPILL_BYTES:
            self._spill()

    def _kept(self, row: Row, prompt: Prompt) -> tuple[int | None, list[dict[str, Any]], Mapping[str, Any]]:
        messages = [json_columns(message) for message in prompt] if isinstance(prompt, list) else []
        columns = {} if row.columns is None else row.columns
        if row.environment is None:
            return None, messages, columns
        key = json.dumps([row.environment.name, row.environment.options], sort_keys=True, default=str)
        if key not in self._environment_indices:
            self._environment_indices[key] = len(self._packed.environments)
            self._packed.environments.append(row.environment)
        return self._environment_indices[key], messages, columns

    def _note_length(self, size: int, index: int) -> None:
        if len(self._longest) < NUM_LONGEST:
            heapq.heappush(self._longest, (size, index))
        elif size > self._longest[0][0]:
            heapq.heapreplace(self._longest, (size, index))

    def _spill(self) -> None:
        try:
            if self._part is None:
                self._cache.mkdir(parents=True, exist_ok=True)
                self._part = Path(tempfile.mkdtemp(prefix="part-", dir=self._cache))
            with (self._part / "rows").open("ab") as file:
                file.write(self._rows)
        except OSError as error:
            raise InputError(
                f"the rows of the data could not be written to {self._cache}: {error}. Free up disk space, "
                f"or set XDG_CACHE_HOME to another one."
            ) from error
        self._num_spilled += len(self._rows)
        self._rows = bytearray()

    def _spill_if_possible(self) -> None:
        try:
            self._spill()
        except InputError as error:
            log.warning("The rows are not kept for the next start: %s", error)
            self.discard()
            self._part = None

    def finish(self, findings: Findings, name: str | None) -> PackedTasks:
        """The rows. A file of them stays in the cache under `name`; with None it goes with this process."""
        packed = self._packed
        if self._part is None and name is not None and findings.num_rows >= KEPT_ROWS and self._rows:
            self._spill_if_possible()
        if self._part is None:
            packed.rows = bytes(self._rows)
        else:
            self._spill()
            packed.rows = _mapped(self._part / "rows")
        packed.longest = [index for _, index in sorted(self._longest, reverse=True)]
        packed.findings = findings
        if self._part is not None:
            # What an environment says to a row may differ at the next start.
            may_differ = packed.odd or packed.environments
            if name is None or may_differ or not _is_kept(packed, self._part, self._cache / name):
                shutil.rmtree(self._part)
        return packed

    def discard(self) -> None:
        """Removes what was written, where reading failed."""
        if self._part is not None:
            shutil.rmtree(self._part, ignore_errors=True)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _is_kept(packed: PackedTasks, part: Path, place: Path) -> bool:
    """Moves the rows to `place`; false where they cannot be written down, or are there already."""
    findings = packed.findings
    if not all(_is_own(spec) for spec in packed.specs) or place.exists():
        return False
    header = {
        "labels": packed.labels,
        "starts": packed.starts,
        "specs": [[spec.name, dict(spec.options)] for spec in packed.specs],
        "examples": packed.examples,
        "longest": packed.longest,
        "findings": {
            **{name: getattr(findings, name) for name in Findings.__slots__},
            "num_made": list(findings.num_made.items()),
        },
    }
    try:
        written = json.dumps(header)
    except (TypeError, ValueError):
        # Options that are no JSON.
        return False
    try:
        for name in _COLUMNS:
            with (part / name).open("wb") as file:
                getattr(packed, name).tofile(file)
        with (part / _LEVELS).open("wb") as file:
            packed.levels.tofile(file)
        (part / "header.json").write_text(written, encoding="utf-8")
        os.replace(part, place)
    except OSError as error:
        # The disk is full, or another start was faster.
        log.warning("The rows are not kept for the next start: %s.", error)
        return False
    tables = sorted(_tables(place.parent), key=lambda path: path.stat().st_mtime)
    for old in tables[:-KEPT_TABLES]:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _is_own(spec: VerifierSpec) -> bool:
    """Whether what the verifier makes of a gold depends on our own code alone."""
    return spec.name in BUILT_IN and spec.name != "weighted"


def _tables(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if (path / "header.json").is_file()]


def _column(path: Path) -> "array[int]":
    column = array("Q")
    column.frombytes(path.read_bytes())
    return column


def load_packed(place: Path) -> PackedTasks | None:
    """The rows that an earlier start kept at `place`; None where there are none."""
    try:
        header = json.loads((place / "header.json").read_text(encoding="utf-8"))
        ends, numbers, prompt_keys = (_column(place / name) for name in _COLUMNS)
        rows = _mapped(place / "rows")
        levels = array("d")
        levels.frombytes((place / _LEVELS).read_bytes())
    except FileNotFoundError:
        return None
    is_whole = len(ends) == len(numbers) == len(prompt_keys) > 0 and ends[-1] == len(rows)
    if not is_whole or len(levels) not in (0, len(ends)):
        # The machine went down before the disk had all of it.
        shutil.rmtree(place)
        return None
    # The tables that were used last are kept.
    os.utime(place)
    findings = header["findings"]
    findings |= {"num_made": Counter(dict(findings["num_made"])), "left_out": Counter(findings["left_out"])}
    specs = [VerifierSpec(name, options) for name, options in header["specs"]]
    return PackedTasks(
        *(rows, ends, numbers, prompt_keys, header["labels"], header["starts"], specs),
        examples=[(index, where) for index, where in header["examples"]],
        longest=header["longest"],
        findings=Findings(**findings),
        levels=levels,
    )
