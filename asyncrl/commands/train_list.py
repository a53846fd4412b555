"""The list of shipped recipes that `asyncrl train` prints where it is given none."""

import importlib.util
import os
import textwrap
from collections.abc import Iterator

from asyncrl.recipe import shipped
from asyncrl.recipe.header import Header, read_header
from asyncrl.system.memory import machine_memory
from asyncrl.system.shipped import shipped_folder

WIDTH = 100


def recipe_list(free_gib: float | None = None) -> str:
    """Recipes that run on this machine, quickest first: what each teaches, its time, memory and command.

    `free_gib` is memory, by default what this machine has left.
    """
    free = machine_memory().available / 2**30 if free_gib is None else free_gib
    cores = len(os.sched_getaffinity(0))
    headers = sorted(_headers(), key=lambda header: (header.minutes, header.first is not None, header.name))
    lacking = {header.name: why for header in headers if (why := lacks(header, free)) is not None}
    lines = ["asyncrl train RECIPE [section.key=value ...]", ""]
    lines += [f"Shipped recipes that run here (cores: {cores}, free memory: {free:.1f} GiB):", ""]
    for header in headers:
        if header.name not in lacking:
            lines += _lines(header)
    lines += [f"Not here: {name}, {why}." for name, why in lacking.items()]
    count, place = len(shipped.files()) - len(headers), shipped_folder(shipped.FOLDER)
    lines += [f"For GPUs: {count} more in {place}; `asyncrl plan NAME` says what one needs."]
    lines += ["For your own model and data: `asyncrl init` writes a recipe."]
    return "\n".join(lines)


def lacks(header: Header, free_gib: float) -> str | None:
    """The need of a recipe that this machine does not meet; None where it runs."""
    if header.module is not None and importlib.util.find_spec(header.module) is None:
        flag = str(header.extra).upper()
        return f"needs {header.module}: the extra {header.extra} (docs/install.md; make setup {flag}=1)"
    if header.memory_gib > free_gib:
        return f"needs {header.memory_gib} GiB of memory"
    return None


def _headers() -> Iterator[Header]:
    home = shipped_folder(shipped.FOLDER)
    if home is not None:
        found = (read_header(home / file, file.stem) for file in shipped.files())
        yield from (header for header in found if header is not None)


def _lines(header: Header) -> list[str]:
    commands = [*([header.first] if header.first else []), f"asyncrl train {header.name}"]
    said = textwrap.wrap(header.teaches, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return [*said, f"    {header.time}; {header.memory_gib} GiB", *(f"    {each}" for each in commands), ""]
