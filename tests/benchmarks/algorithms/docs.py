"""The part of docs/measurements/ablation.md that the rows make: between two marks, written by each call."""

import os
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import InputError
from tests.benchmarks.algorithms.plan import ROOT, Row
from tests.benchmarks.algorithms.report import markdown

PAGE = ROOT / "docs" / "measurements" / "ablation.md"
BEGIN = "<!-- Written by `make algorithms` from its results: -->\n\n"
END = "\n<!-- End of what the results say. -->"


def documented(rows: Sequence[Row], figures: Sequence[Path]) -> str:
    """The text between the marks."""
    links = [
        f"![{path.stem}: held-out curves and areas]({os.path.relpath(path, PAGE.parent)})" for path in figures
    ]
    return "\n".join([markdown(rows), *(f"{link}\n" for link in links)])


def write_docs(rows: Sequence[Row], figures: Sequence[Path], page: Path = PAGE) -> None:
    """Raises InputError where the page lacks a mark."""
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{page} lacks {BEGIN.strip() if not begin else END.strip()!r}.")
    page.write_text(head + BEGIN + documented(rows, figures) + END + tail, encoding="utf-8")
