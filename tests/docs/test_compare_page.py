"""docs/report.md names every key of the JSON of a comparison."""

import re
from pathlib import Path

import pytest

from asyncrl.readers.compare import run_comparison as comparison
from asyncrl.readers.compare.contest import Contest
from asyncrl.readers.compare.run_comparison import Point

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### The JSON\n")[2].partition("\n## ")[0]
TYPES = (
    *(comparison.Comparison, comparison.GroupRow, comparison.RunRow, comparison.DifferingKey),
    *(comparison.Pair, Contest, Point),
)


@pytest.mark.parametrize("part", TYPES, ids=lambda part: part.__name__)
def test_the_page_names_the_keys(part: type) -> None:
    assert set(part.__annotations__) <= set(re.findall(r"`(\w+)`", SECTION))
