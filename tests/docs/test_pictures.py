"""The pictures of docs/: each page of `asyncrl view` has one, and a command makes each."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
SHELL = ROOT / "asyncrl" / "readers" / "page" / "static" / "shell.js"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".make" / "pictures.py"))


def test_each_view_of_the_page_has_a_picture(script: dict[str, Any]) -> None:
    lists = re.findall(r"^const (?:RUN|PAGE)_TABS = \[(.*?)\];", SHELL.read_text(), re.MULTILINE)
    views = {name for names in lists for name in re.findall(r'"(\w+)"', names)}
    assert len(views) > 10 and views == {picture.view() for picture in script["PAGE"]}


def test_a_command_makes_each_picture_and_a_page_shows_it(script: dict[str, Any]) -> None:
    there = {path.stem for path in IMAGES.iterdir()}
    assert there == set(script["NAMES"])
    of_page = {picture.name for picture in script["PAGE"]}
    assert shown_in("page.md") == of_page
    assert shown_in("report.md") == there - of_page


def shown_in(page: str) -> set[str]:
    return set(re.findall(r"\(images/([\w-]+)\.png\)", (ROOT / "docs" / page).read_text()))


def test_no_picture_is_large(script: dict[str, Any]) -> None:
    for path in IMAGES.iterdir():
        assert path.stat().st_size <= script["MOST_BYTES"], path
        with Image.open(path) as image:
            assert image.width <= 1280 and image.height <= 1100, path
