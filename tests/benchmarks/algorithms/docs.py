"""The part of docs/measurements/ablation.md that the rows make: between two marks, written by each call."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.algorithms.plan import ROOT, Row
from tests.benchmarks.algorithms.report import markdown
from tests.benchmarks.kept import write_between

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
    write_between(page, BEGIN, END, documented(rows, figures))
