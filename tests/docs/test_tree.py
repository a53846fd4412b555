"""The tree in docs/architecture.md is the tree, and stays small enough to take in at one look."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_ENTRIES = 26
BOOKKEEPING = {"__init__.py", "py.typed", "__pycache__"}


def entries(folder: Path) -> set[str]:
    """Names in `folder`, folders with a slash."""
    found = (entry for entry in folder.iterdir() if entry.name not in BOOKKEEPING)
    return {f"{entry.name}/" if entry.is_dir() else entry.name for entry in found}


def drawn() -> list[tuple[int, str]]:
    """Indentation and name of every entry in the drawing."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("## The tree")[2].split("```")[1]
    names = re.compile(r"(?:^|(?<=\s{2}))(\w+(?:\.py|/))(?=\s|$)")
    return [
        (len(line) - len(line.lstrip()), match[1])
        for line in block.strip("\n").splitlines()
        for match in names.finditer(line)
    ]


def test_every_entry_at_the_top_is_drawn_and_no_other() -> None:
    top = {name for indent, name in drawn() if indent == 2}
    assert top == entries(ROOT / "asyncrl")


def test_the_top_is_small_enough_for_one_look() -> None:
    assert len(entries(ROOT / "asyncrl")) <= MOST_ENTRIES


def test_rooms_of_the_trainer_are_drawn() -> None:
    below = {name for indent, name in drawn() if indent == 4}
    rooms = {name for name in entries(ROOT / "asyncrl" / "trainer") if name.endswith("/")}
    assert rooms <= below
