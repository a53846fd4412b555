"""Which runs and chains a page shows, what of each run is read, and which run a request names."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.model.source import find_source
from asyncrl.model.token_text import TokenTexts
from asyncrl.readers.chain.story import is_chain, runs_of
from asyncrl.readers.chain.tables import chain_folder
from asyncrl.readers.status import stamp
from asyncrl.recipe import Model
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.run.metrics_file import MetricsFollower
from asyncrl.system.files import read_text
from asyncrl.system.paths import nearest_run
from asyncrl.system.places import ANSWERS, CHECKPOINTS, JOURNAL, METRICS, RECIPE, STATUS

MOST_OPEN = 200
"""Runs of which the page keeps what it has read."""
WRITTEN = (METRICS, JOURNAL, f"{JOURNAL}-wal", STATUS, ANSWERS, f"{ANSWERS}-wal")
"""Files that change while a run trains, or is evaluated."""


class Run:
    """One run folder, opened for reading. What a property reads, it reads once."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        """Unique among the runs of the page."""
        self.folder = folder
        self.start = stamp(folder / RECIPE)
        """Changes with each start of the run, which writes its recipe."""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The recipe as the run resolved it."""
        return dict(read_yaml(read_text(self.folder / RECIPE)))

    @cached_property
    def journal(self) -> JournalReader:
        """Raises InputError where there is none yet, or one of another schema version."""
        return JournalReader(self.folder / JOURNAL)

    @cached_property
    def texts(self) -> TokenTexts:
        """Texts of its model's tokens."""
        return TokenTexts(_tokenizer_folder(self.folder, self.recipe["model"]))

    @cached_property
    def metrics(self) -> MetricsFollower:
        """Reads what was added to metrics.jsonl."""
        return MetricsFollower(self.folder / METRICS)

    def written_seconds(self) -> float:
        """Unix time when it last wrote anything; 0 where it has written nothing."""
        files = [self.folder / name for name in WRITTEN]
        return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)

    def revision(self) -> str:
        """A text that changes whenever the run has written anything."""
        return "-".join(stamp(self.folder / name) for name in WRITTEN)


class Runs:
    """The runs in `paths`, each of them a run folder, a folder of run folders, or a chain, which brings the
    runs of its stages.

    Raises InputError for a path that is none of these. Not thread-safe; one event loop.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [Path(os.path.abspath(chain_folder(path) or path)) for path in paths]
        self._names: dict[Path, str] = {}
        """A run that vanishes and comes back keeps its name."""
        self._open: OrderedDict[str, Run] = OrderedDict()
        for path in self._paths:
            if not _run_folders(path) and not _chain_folders(path):
                raise InputError(
                    f"{path} holds no {RECIPE}, so it is not a run folder, and no run folders either. "
                    f"Runs are in runs/NAME.{nearest_run(path)}"
                )

    def folders(self) -> dict[str, Path]:
        """Name -> folder of each run that is there now, by name."""
        found = dict.fromkeys(folder for path in self._paths for folder in _run_folders(path))
        for folder in found:
            if folder not in self._names:
                self._name(folder)
        return dict(sorted((self._names[folder], folder) for folder in found))

    def chains(self) -> dict[str, Path]:
        """Name -> folder of each chain that is there now, by name."""
        found = dict.fromkeys(folder for path in self._paths for folder in _chain_folders(path))
        return dict(sorted((self._names.get(folder) or self._name(folder), folder) for folder in found))

    def _name(self, folder: Path) -> str:
        self._names[folder] = _unused(folder.name, set(self._names.values()))
        return self._names[folder]

    def get(self, name: str) -> Run | None:
        """The run of that name, None where there is none now."""
        folder = self.folders().get(name)
        if folder is None:
            self._open.pop(name, None)
            return None
        run = self._open.pop(name, None)
        if run is None or run.start != stamp(folder / RECIPE):
            run = Run(name, folder)
        self._open[name] = run
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return run

    def all(self) -> list[Run]:
        """Each run that is there now, by name."""
        return [run for name in self.folders() if (run := self.get(name)) is not None]


def _run_folders(path: Path) -> list[Path]:
    if (path / RECIPE).is_file():
        return [path]
    if is_chain(path):
        return runs_of(path)
    if not path.is_dir():
        return []
    return sorted(folder for folder in path.iterdir() if (folder / RECIPE).is_file())


def _chain_folders(path: Path) -> list[Path]:
    if is_chain(path):
        return [path]
    return sorted(filter(is_chain, path.iterdir())) if path.is_dir() else []


def _unused(name: str, used: set[str]) -> str:
    """`name`, numbered where another run has it: name, name~2, name~3."""
    number = 1
    while (numbered := name if number == 1 else f"{name}~{number}") in used:
        number += 1
    return numbered


def _tokenizer_folder(run_folder: Path, section: dict[str, Any]) -> Path:
    """The base model's folder; an exported checkpoint's if the run was copied without the model."""
    source = find_source(Model(path=section["path"], revision=section.get("revision")))
    model = Path(section["path"]) if source is None else source.folder
    exported = sorted((run_folder / CHECKPOINTS).glob("step-*/hf/tokenizer.json"))
    return exported[-1].parent if exported and not model.is_dir() else model


REFUSED = "refused"
"""The only key of an answer of an exported page that says why there is none."""
RUNS = web.AppKey("runs", Runs)
T = TypeVar("T")


def run_of(request: web.Request) -> Run:
    """The run of `/api/runs/{run}/...`. Raises HTTPNotFound."""
    name = request.match_info["run"]
    run = request.app[RUNS].get(name)
    if run is None:
        raise web.HTTPNotFound(text=f"There is no run {name}.")
    return run


async def answer(read: Callable[..., T], *arguments: Any) -> web.Response:
    """The result of `read` as JSON; `read` runs in a thread, since it waits for a disk."""
    return web.json_response(await asyncio.to_thread(read, *arguments))


def or_refused(read: Callable[..., T], *arguments: Any) -> T | dict[str, str]:
    """The result of `read`; where files cannot be read, {REFUSED: why}."""
    try:
        return read(*arguments)
    except (InputError, OSError) as error:
        return {REFUSED: str(error)}


def whole(request: web.Request, name: str) -> int | None:
    """A whole number of the query, None where it has none of that name. Raises HTTPBadRequest."""
    text = request.query.get(name)
    if text is None:
        return None
    # A longer one does not fit the journal's 64-bit numbers.
    if len(text) > 18 or not text.removeprefix("-").isdecimal():
        raise web.HTTPBadRequest(text=f"{name} is {text[:40]!r}, expected a whole number.")
    return int(text)
