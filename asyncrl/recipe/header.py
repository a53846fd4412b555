"""The header of a shipped recipe: comments that say what it teaches, and what it takes on a CPU.

The first sentence says what it teaches. Lines "# key: value" say the rest: time, memory, needs (a module, and
the extra of asyncrl that installs it) and first (a command that makes what the recipe begins with).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from asyncrl.system.files import read_text

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
