"""One thing to run in a box: a command line or a warm script, with its files and limits. How languages are
run.

The kernel enforces the limits; which tier enforces what: doctor.py."""

from dataclasses import dataclass, field, fields

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one run; the defaults let ordinary contest programs pass."""

    cpu_seconds: float = 10.0
    """CPU time of all processes of the run together; one process alone is stopped at
    the next whole second."""
    wall_seconds: float = 20.0
    """Time on the clock, from the program's first instruction to its end."""
    memory_bytes: int = 1024 * MEBIBYTE
    """Address space of each process (less the main stack), and resident memory of all together."""
    stack_bytes: int = 256 * MEBIBYTE
    """Address space added to memory_bytes for the main stack. Other threads have 2 MiB, in warm Python 8."""
    processes: int = 64
    """Processes and threads alive at once."""
    open_files: int = 512
    """Descriptors per process."""
    disk_bytes: int = 128 * MEBIBYTE
    """All files the program writes, together; they live in memory and vanish with the run."""
    output_bytes: int = 16 * MEBIBYTE
    """Standard output, and again standard error; beyond it the run is ended."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 50:
                raise ValueError(f"limit {each.name} is {value!r}; expected a number above 0")
            if not each.name.endswith("_seconds") and not isinstance(value, int):
                raise ValueError(f"limit {each.name} is {value!r}; expected a whole number")


def parse_limits(raw: object, base: Limits) -> Limits:
    """`base` with the fields of the mapping `raw`; `memory_mb`, `disk_mb` and `output_mb` are in mebibytes.

    Raises ValueError for an unknown key or a bad value."""
    if not isinstance(raw, dict):
        raise ValueError(f"limits are {raw!r}; expected an object such as {{'wall_seconds': 5}}")
    values = {each.name: getattr(base, each.name) for each in fields(base)}
    for key, value in raw.items():
        name, scale = key, 1
        if isinstance(key, str) and key.endswith("_mb"):
            name, scale = key.removesuffix("_mb") + "_bytes", MEBIBYTE
        if name not in values:
            raise ValueError(f"limits has the unknown key {key!r}; expected one of {', '.join(values)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        values[name] = int(value * scale) if scale > 1 and is_number else value
    return Limits(**values)


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


def find_language(name: str) -> Language:
    """The entry of LANGUAGES. Raises ValueError for an unknown name."""
    key = name.strip().lower()
    language = LANGUAGES.get(ALIASES.get(key, key))
    if language is None:
        raise ValueError(f"language {name!r} is unknown; expected one of {', '.join(sorted(LANGUAGES))}")
    return language
