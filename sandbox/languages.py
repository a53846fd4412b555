"""How each language is compiled and run. A table: add yours by passing a longer one to SandboxPool."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """Command lines; {source}, {binary} and {python} are filled in."""

    source: str
    """File name of the source in the working directory."""
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    """Empty for interpreted languages. Runs in a box of its own, once per program."""
    binary: str = "program"
    """File that compile leaves and run starts."""
    warm: bool = False
    """A Python script, which can run in a fork of the warm interpreter."""


LANGUAGES = {
    "python": Language("main.py", ("{python}", "-s", "{source}"), warm=True),
    "cpp": Language(
        "main.cpp",
        ("./{binary}",),
        ("/usr/bin/g++", "-std=c++17", "-O2", "-pipe", "-o", "{binary}", "{source}"),
    ),
    "c": Language(
        "main.c",
        ("./{binary}",),
        ("/usr/bin/gcc", "-std=c17", "-O2", "-pipe", "-o", "{binary}", "{source}", "-lm"),
    ),
    "bash": Language("main.sh", ("/bin/bash", "{source}")),
}

ALIASES = {"py": "python", "python3": "python", "c++": "cpp", "cc": "cpp", "sh": "bash", "shell": "bash"}


def find_language(name: str, table: dict[str, Language]) -> Language:
    """The table's entry. Raises ValueError for an unknown name."""
    key = name.strip().lower()
    language = table.get(ALIASES.get(key, key))
    if language is None:
        raise ValueError(f"language {name!r} is unknown; expected one of {', '.join(sorted(table))}")
    return language
