"""The headers of the shipped recipes say what each teaches and takes."""

from pathlib import Path

import pytest
from fakes.shapes import tiny_shape

from asyncrl.launch.meters.memory import run_bytes
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.shipped import files, read_header

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def on_cpus() -> list[str]:
    return [file.stem for file in files() if load_recipe(RECIPES / file).placement.device == "cpu"]


def test_each_recipe_for_cpus_says_time_and_a_memory_that_covers_what_it_is_refused_below(
    on_cpus: list[str],
) -> None:
    for name in on_cpus:
        header = read_header(RECIPES / f"{name}.yaml", name)
        assert header is not None, name
        assert len(header.teaches) > 20, name
        assert 1 <= header.minutes <= 60, name
        needed = run_bytes(load_recipe(RECIPES / f"{name}.yaml"), tiny_shape(), longest_prompt=40)
        assert 1 << 30 < needed <= header.memory_gib << 30, name


def test_a_command_that_comes_first_names_a_shipped_recipe(on_cpus: list[str]) -> None:
    found = [
        header.first
        for name in on_cpus
        if (header := read_header(RECIPES / f"{name}.yaml", name)) is not None and header.first is not None
    ]
    assert len(found) == 2
    for command in found:
        program, subcommand, name, *_ = command.split()
        assert (program, subcommand in ("train", "select")) == ("asyncrl", True)
        assert name in [file.stem for file in files()]


def test_a_recipe_without_a_time_is_for_gpus() -> None:
    assert read_header(RECIPES / "published" / "dapo_32b.yaml", "dapo_32b") is None


@pytest.mark.parametrize(
    ("lines", "minutes"),
    [
        ("# Sums. More.\n# time: 3 minutes on two cores\n# memory: 4 GiB\n", 3),
        ("# Sums.\n# time: about 2 hours on two cores: slow\n# memory: 4 GiB\n", 120),
    ],
)
def test_a_header_is_read(tmp_path: Path, lines: str, minutes: int) -> None:
    (tmp_path / "a.yaml").write_text(lines)
    header = read_header(tmp_path / "a.yaml", "a")
    assert header is not None
    assert (header.teaches, header.minutes, header.memory_gib) == ("Sums.", minutes, 4)


@pytest.mark.parametrize(
    "lines",
    [
        "# Sums.\n# time: 3 minutes on two cores\n",
        "# Sums.\n# time: soon\n# memory: 4 GiB\n",
        "# Sums.\n# time: 3 minutes on two cores\n# memory: 4 GiB\n# needs: ray\n",
    ],
)
def test_half_a_header_is_an_error(tmp_path: Path, lines: str) -> None:
    (tmp_path / "a.yaml").write_text(lines)
    with pytest.raises(ValueError, match="header"):
        read_header(tmp_path / "a.yaml", "a")
