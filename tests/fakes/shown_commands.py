"""Command lines that pages and helps show: where they stand, and the words that a shell makes of them."""

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from asyncrl.commands import main as cli

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "verifiers/README.md")),
    ROOT / "asyncrl" / "launch" / "first_recipe" / "skeleton" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
PROGRAMS = ("asyncrl", "make", "python", "pip", "source")
"""First words that make a command of a span of code in a sentence."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
BETWEEN = re.compile(r"[|&;()<>]+")
"""Words of a shell that end a command."""
GIVEN = re.compile(r"[A-Za-z_]\w*=")
"""A variable before a command."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    """Relative to the repository."""
    line: int
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """One command: a program and its arguments."""

    place: str
    """page:line, or the command whose help it is."""
    words: tuple[str, ...]
    given: tuple[str, ...] = ()
    """NAME=value before the program."""
    is_mentioned: bool = False
    """In a sentence: it may lack arguments."""

    @property
    def program(self) -> str:
        """ "asyncrl" for env/bin/asyncrl too."""
        return self.words[0].rpartition("/")[2] if self.words else ""


def blocks(language: str | None = None) -> Iterator[Block]:
    """Those of all pages, in `language` where one is named."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if language in (None, found[2]):
                indent, body = found[1], found[3]
                lines = [line.removeprefix(indent) for line in body.splitlines()]
                number = text.count("\n", 0, found.start()) + 2
                yield Block(str(page.relative_to(ROOT)), number, found[2], "\n".join(lines))


def shown_commands() -> list[Shown]:
    """Every command of the pages: of blocks in bash, behind "$ " in others, and of spans in sentences. Of a
    whole script, those of PROGRAMS."""
    return [*_of_blocks(), *_of_sentences()]


def _of_blocks() -> Iterator[Shown]:
    for block in blocks():
        is_script = block.text.startswith("#!")
        for line, text in _lines(block):
            if block.language == "bash" or text.startswith("$ "):
                shown = commands_of(text.removeprefix("$ "), f"{block.page}:{line}")
                yield from (each for each in shown if not is_script or each.program in PROGRAMS)


def _lines(block: Block) -> Iterator[tuple[int, str]]:
    """Numbered lines; those that end with a backslash continue on the next."""
    whole, begun = "", block.line
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        begun = begun if whole else number
        whole += line
        if line.endswith("\\"):
            whole = whole.removesuffix("\\")
            continue
        yield begun, whole
        whole = ""


def _of_sentences() -> Iterator[Shown]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        # As many lines as before, so that places stay.
        prose = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
        for found in SPAN.finditer(prose):
            if found[1].split()[0] in PROGRAMS and len(found[1].split()) > 1:
                place = f"{page.relative_to(ROOT)}:{prose.count(chr(10), 0, found.start()) + 1}"
                text = " ".join(found[1].split())
                yield from (replace(shown, is_mentioned=True) for shown in commands_of(text, place))


def commands_of(line: str, place: str) -> Iterator[Shown]:
    """The simple commands of a line of a shell, without comments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for word in [*lexer, ";"]:
        if is_target:
            is_target = False
        elif not BETWEEN.fullmatch(word):
            words.append(word)
        elif word in (">", ">>", "<"):
            is_target = True
        else:
            if words:
                yield _command(words, place)
            words = []


def _command(words: list[str], place: str) -> Shown:
    given = []
    while words and GIVEN.match(words[0]):
        given.append(words.pop(0))
    if words and words[0] in ("srun", "ray") and "--" in words:
        words = words[words.index("--") + 1 :]
    if words and words[0] == "exec":
        words = words[1:]
    return Shown(place, tuple(words), tuple(given))


def module_of(command: str) -> ModuleType:
    return importlib.import_module(f"asyncrl.commands.{command.replace('-', '_')}")


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments as the parser of `asyncrl WORDS` reads them. Exits as the command line does."""
    return cli.parse(cli.parser_of(words[0], module_of(words[0])), words[1:])
