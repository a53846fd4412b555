"""Shipped recipes, chains and overlays by their names, from any folder, and the plain data in such files.

Owns the rule about their paths: a shipped file that is named counts as lying in ./recipes, so that a run and
what it makes are in the current folder, and nothing is written where asyncrl is installed.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.system.files import read_text
from asyncrl.system.paths import expanded, why
from asyncrl.system.places import is_checkout, shipped_folder

# A recipe's header: its first sentence says what the recipe teaches. Lines "# key: value" say the rest: time,
# memory, needs (a module, and the extra of asyncrl that installs it) and first (a command that makes what the
# recipe begins with).
_LINE = re.compile(r"(time|memory|needs|first): (.+)")
_TIME = re.compile(r"(?:about )?(\d+) (minutes?|hours?) on two (?:busy )?cores\b.*")
_MEMORY = re.compile(r"(\d+) GiB")
_NEEDS = re.compile(r"(\w+) \(extra (\w+)\)")
_SENTENCE = re.compile(r".+?\.(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    """Name on the command line."""
    teaches: str
    time: str
    minutes: int
    """Time of the run alone, on two cores."""
    memory_gib: int
    """Free memory that a run on the CPU needs."""
    module: str | None = None
    extra: str | None = None
    """Installs `module`."""
    first: str | None = None


def read_header(file: Path, name: str) -> Header | None:
    """None for a recipe that says no time: it is for GPUs. Raises ValueError for half a header."""
    lines = []
    for line in read_text(file).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    said = {match[1]: match[2] for line in lines if (match := _LINE.fullmatch(line))}
    if "time" not in said:
        return None
    time, memory = _TIME.fullmatch(said["time"]), _MEMORY.fullmatch(said.get("memory", ""))
    needs = _NEEDS.fullmatch(said["needs"]) if "needs" in said else None
    teaches = _SENTENCE.match(" ".join(lines))
    if time is None or memory is None or teaches is None or ("needs" in said and needs is None):
        raise ValueError(f"{file}: a header as in {__name__} was expected, found {said}")
    return Header(
        name=name,
        teaches=teaches[0],
        time=said["time"],
        minutes=int(time[1]) * (60 if time[2].startswith("hour") else 1),
        memory_gib=int(memory[1]),
        module=needs and needs[1],
        extra=needs and needs[2],
        first=said.get("first"),
    )


FOLDER = "recipes"
SUFFIX = ".yaml"
PARTS = {"chain": "chains", "overlay": "overlays"}
"""Kind of file -> its folder below recipes. Recipes are in all others."""


@dataclass(frozen=True, slots=True)
class Found:
    file: Path
    folder: Path
    """Paths in the file are relative to it. It need not exist."""


def find(path: Path, kind: str = "recipe") -> Found:
    """The file at `path`; where there is none the shipped one of that name, such as r1_zero_arithmetic_cpu,
    published/dapo_32b or recipes/chains/distill_cpu.yaml. `kind` is recipe, chain or overlay.

    A path that names nothing is returned as it is.
    """
    if path.exists():
        inside = _inside(path)
        return Found(path, path.parent if inside is None else Path.cwd() / FOLDER / inside.parent)
    inside = _named(path, kind)
    home = shipped_folder(FOLDER)
    if inside is None or home is None:
        return Found(path, path.parent)
    return Found(home / inside, Path.cwd() / FOLDER / inside.parent)


def is_named(path: Path, kind: str = "recipe") -> bool:
    """Whether nothing is at `path`, but a shipped file has that name."""
    return not path.exists() and _named(path, kind) is not None


def missing(path: Path, kind: str = "recipe") -> str:
    """The sentence for a path at which there is neither a file nor the name of a shipped one."""
    said = f"There is no {kind} at {path}."
    home = shipped_folder(FOLDER)
    if home is None:
        return said
    names = {inside.stem for inside in files(kind)}
    here = Path.cwd()
    shown = home.relative_to(here) if home.is_relative_to(here) else home
    others = f" The ones shipped are in {shown / PARTS.get(kind, '')}/."
    return said + did_you_mean(path.stem, names, others)


def files(kind: str = "recipe") -> list[Path]:
    """The shipped files of a kind, relative to the folder recipes, sorted."""
    home = shipped_folder(FOLDER)
    if home is None:
        return []
    kinds = {folder: name for name, folder in PARTS.items()}
    found = (file.relative_to(home) for file in home.rglob(f"*{SUFFIX}"))
    return sorted(inside for inside in found if kinds.get(inside.parts[0], "recipe") == kind)


def _named(path: Path, kind: str) -> Path | None:
    """The shipped file that `path` names, relative to the folder recipes."""
    here = Path(os.path.abspath(expanded(path)))
    if not here.is_relative_to(Path.cwd()):
        return None
    parts = here.relative_to(Path.cwd()).parts
    parts = parts[1:] if parts[:1] == (FOLDER,) else parts
    if not parts:
        return None
    # Not with_suffix: names such as simplerl_zoo_0.5b have a dot.
    name = "/".join(parts).removesuffix(SUFFIX)
    there = {str(inside).removesuffix(SUFFIX): inside for inside in files(kind)}
    if name in there:
        return there[name]
    return next((inside for inside in there.values() if inside.stem == name), None)


def _inside(path: Path) -> Path | None:
    """`path` relative to the installed folder recipes, if it lies there; None in a checkout."""
    home = shipped_folder(FOLDER)
    if is_checkout() or home is None:
        return None
    resolved = path.resolve()
    return resolved.relative_to(home.resolve()) if resolved.is_relative_to(home.resolve()) else None


def read_plain(path: Path, kind: str, of_folder: str) -> Any:
    """The plain data in the YAML file at `path`, a recipe or of a kind in PARTS. Raises InputError, for a
    folder with the sentence `of_folder`."""
    try:
        return read_yaml(read_text(path))
    except FileNotFoundError:
        raise InputError(missing(path, kind)) from None
    except IsADirectoryError:
        article = "an" if kind == "overlay" else "a"
        raise InputError(f"{path} is a folder, not {article} {kind}. {of_folder}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {why(error)}.") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
