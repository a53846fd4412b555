"""One thing to run in a box: a command line or a warm script, with its files. How languages are run."""

from dataclasses import dataclass, field

from sandbox.limits import Limits

MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Command:
    """A command that a worker runs in one box; the working directory holds `files` and nothing else."""

    argv: tuple[str, ...]
    """Program and arguments. Of a warm run: the script's file name and its arguments."""
    warm: bool = False
    """Run the Python script in a fork of the warm interpreter instead of a new process image."""
    stdin: bytes = b""
    files: tuple[tuple[str, bytes], ...] = ()
    """(plain file name, content)."""
    collect: tuple[str, ...] = ()
    """Names of files to hand back, in Result.files, when the command exits with 0."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the box's own; nothing of the host's is ever inherited."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("the command is empty; expected a program and its arguments")
        for name in (*self.collect, *(name for name, _ in self.files)):
            if not name or "/" in name or "\0" in name or name in (".", "..") or len(name) > 200:
                raise ValueError(f"file name {name!r} is not a plain name; expected one such as 'data.txt'")
        for word in (*self.argv, *self.environment, *self.environment.values()):
            if "\0" in word:
                raise ValueError(f"argument or environment entry {word!r} holds a NUL character")
        for name, content in self.files:
            if len(content) > MAX_FILE_BYTES:
                raise ValueError(f"file {name!r} has {len(content)} bytes; expected at most {MAX_FILE_BYTES}")


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
