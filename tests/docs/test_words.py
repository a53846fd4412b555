"""Docstrings say what a thing is or does, subject first. Those of fields and constants stand under them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("asyncrl", "verifiers", "sandbox")
OPENINGS = ("Of", "What", "Who", "The same of")
"""Words that no docstring begins with."""
PERSONS = ("somebody", "nobody", "anybody", "someone", "anyone")
"""Words that no docstring has, capitalised or not: programs act, or a user does. NOBODY is a user id."""

OPENING = re.compile(rf"\s*({'|'.join(OPENINGS)})\b")
PERSON = re.compile(rf"\b({'|'.join(word for name in PERSONS for word in (name, name.capitalize()))})\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands alone as a statement."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def flaws(source: str) -> list[tuple[int, str]]:
    """Line and first line of each docstring that is to be rewritten."""
    return [
        (line, text.strip().partition("\n")[0])
        for line, text in docstrings(source)
        if OPENING.match(text) or PERSON.search(text)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_say_what_a_thing_is(folder: str):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(file.relative_to(ROOT)): flaws(file.read_text(encoding="utf-8")) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module holds."""',
        'class Thing:\n    """Of a run."""',
        'def act():\n    """Who acts."""',
        'class Thing:\n    digest: str\n    """The same of a file."""',
        'LIMIT = 3\n"""\nOf requests."""',
        'def act():\n    """Returns None where Nobody acts."""',
    ],
)
def test_a_docstring_of_each_kind_is_checked(source: str):
    assert flaws(source)


def test_plain_docstrings_and_other_strings_are_let_through():
    assert not flaws('"""Offset of a row. Of two, the first."""\nwords = "Of nobody"\nclass Thing: ...')


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "verifiers" / "README.md",
]
TRANSLATED = (
    *(
        "who waited for whom",
        "what became of",
        "in work",
        "goes on",
        "for ever",
        "anew",
        "lets go of",
        "so many",
    ),
    *("in the one", "in the other", "any more", *PERSONS),
)
"""Phrases that read translated."""
PHRASE = re.compile(rf"\b({'|'.join(TRANSLATED)})\b", re.IGNORECASE)


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name)
def test_pages_are_written_in_plain_english(page: Path):
    assert PHRASE.findall(page.read_text(encoding="utf-8")) == []


MOST_WORDS = 50_000


GENERATED = re.compile(r"<!-- Written by .*?<!-- End of what|```mermaid.*?```", re.DOTALL)
"""Tables and a picture that programs write."""


def test_all_pages_together_stay_readable():
    pages = [*PAGES[:3], *(ROOT / "docs").rglob("*.md")]
    texts = [GENERATED.sub("", page.read_text(encoding="utf-8")) for page in pages]
    assert sum(len(text.split()) for text in texts) <= MOST_WORDS
