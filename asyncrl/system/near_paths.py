"""The path that was meant by one which is not there: its parts are almost names that are there."""

import difflib
import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from asyncrl.system.run_files import RECIPE

RUNS = Path("runs")
ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".yaml", ".yml", ".gguf", ".py")
"""Ends of names that say the kind of a file: alone they make no two names alike."""
LEAST_ALIKE = 0.6
MOST_ENTRIES = 10_000
"""Entries of a folder that are looked at."""


def nearest_path(path: str | Path, fits: Callable[[Path], bool] = os.path.exists) -> str:
    """ " Did you mean PATH?" where a path that `fits` is almost `path`, else an empty text."""
    found = _nearest(Path(path), fits)
    return "" if found is None else f" Did you mean {found}?"


def nearest_run(path: str | Path) -> str:
    """ " Did you mean RUN?": a run folder that is almost `path`, or in runs/ has almost its name."""
    given = Path(path)
    if is_run_folder(RUNS / given) and not given.is_absolute():
        return f" Did you mean {RUNS / given}?"
    places = [given] if given.is_absolute() or given.parts[:1] == RUNS.parts else [given, RUNS / given]
    return next(filter(None, (nearest_path(place, is_run_folder) for place in places)), "")


def is_run_folder(path: Path) -> bool:
    return (path / RECIPE).is_file()


def _nearest(path: Path, fits: Callable[[Path], bool]) -> Path | None:
    """Each part that is not there is replaced by the most like name beside it."""
    found = Path(path.anchor)
    parts = path.parts[1:] if path.anchor else path.parts
    try:
        for number, part in enumerate(parts, start=1):
            wanted = fits if number == len(parts) else Path.is_dir
            if part == ".." or ((found / part).exists() and wanted(found / part)):
                found /= part
                continue
            names = [entry.name for entry in islice(found.iterdir(), MOST_ENTRIES) if wanted(entry)]
            near = _most_like(part, names)
            if near is None:
                return None
            found /= near
    except OSError:
        # A folder that cannot be read holds nothing to suggest.
        return None
    return found if found != path else None


def _most_like(name: str, names: Iterable[str]) -> str | None:
    """Without regard to case; the end of a file's name does not count, except among equals."""

    def likeness(other: str) -> tuple[float, float]:
        return _alike(_stem(name), _stem(other)), _alike(name, other)

    best = max(sorted(names), key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= LEAST_ALIKE else None


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()


def _stem(name: str) -> str:
    stem, ending = os.path.splitext(name)
    return stem if ending.lower() in ENDINGS else name
