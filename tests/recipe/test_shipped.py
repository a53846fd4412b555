"""Shipped recipes, chains and overlays are named from any folder, and their paths are of that folder."""

from pathlib import Path

import pytest
from fakes.shapes import tiny_shape

from asyncrl.commands.arguments import is_model
from asyncrl.errors import InputError
from asyncrl.launch.meters.memory import run_bytes
from asyncrl.recipe.chain import read_chain
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.shipped import files, find, read_header
from asyncrl.run.chain import plan_stages
from asyncrl.system.places import shipped_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_checkout_has_its_own_folders() -> None:
    assert shipped_folder("recipes") == ROOT / "recipes"
    assert shipped_folder("docs") == ROOT / "docs"
    assert shipped_folder("nowhere") is None


@pytest.mark.parametrize(
    "name",
    [
        "r1_zero_arithmetic_cpu",
        "r1_zero_arithmetic_cpu.yaml",
        "recipes/r1_zero_arithmetic_cpu",
        "recipes/r1_zero_arithmetic_cpu.yaml",
    ],
)
def test_the_paths_of_a_named_recipe_are_of_the_current_folder(here: Path, name: str) -> None:
    recipe = load_recipe(Path(name))
    assert recipe.prepare is not None
    assert recipe.folder() == here / "runs" / "r1_zero_arithmetic_cpu"
    assert recipe.prepare.folder == str(here / ".cache" / "arithmetic")


def test_a_name_may_have_a_dot_or_leave_out_the_folder(here: Path) -> None:
    whole, short = load_recipe(Path("published/orz_0.5b")), load_recipe(Path("orz_0.5b"))
    assert whole == short.model_copy(update={"verifying": whole.verifying})
    assert whole.folder() == here / "runs" / whole.name


def test_an_overlay_has_a_name_too(here: Path) -> None:
    for overlay in ("@asynchronous", "@recipes/overlays/asynchronous.yaml"):
        recipe = load_recipe(Path("dapo_32b"), [overlay])
        assert recipe.rollout.max_staleness == 2
        assert recipe.folder() == here / "runs" / f"{recipe.name}_asynchronous"


@pytest.mark.parametrize("name", [str(file) for file in files("chain")])
def test_a_named_chain_finds_the_recipes_of_its_stages(here: Path, name: str) -> None:
    stages = plan_stages(read_chain(Path(name)))
    assert len(stages) >= 2
    assert all(stage.place.is_relative_to(here / "runs") for stage in stages)


def test_a_file_of_the_current_folder_comes_before_a_shipped_one(here: Path) -> None:
    (here / "dapo_32b").write_text("name: mine\nmodel: {path: m}\ndata: {train: d.jsonl}\n")
    assert load_recipe(Path("dapo_32b"), ["evaluation.every_steps=0"]).name == "mine"


def test_a_path_elsewhere_is_no_name(here: Path) -> None:
    for path in ("nowhere/dapo_32b.yaml", "../dapo_32b", "/dapo_32b", "recipes"):
        assert find(Path(path)).file == Path(path)


def test_a_checkout_recipe_that_is_given_by_its_path_keeps_its_folder(here: Path) -> None:
    recipe = load_recipe(ROOT / "recipes" / "r1_zero_arithmetic_cpu.yaml")
    assert recipe.folder() == ROOT / "runs" / "r1_zero_arithmetic_cpu"


def test_the_nearest_name_is_proposed(here: Path) -> None:
    with pytest.raises(InputError, match=r"at r1_zero_aritmetic_cpu\. Did you mean r1_zero_arithmetic_cpu\?"):
        load_recipe(Path("r1_zero_aritmetic_cpu"))
    with pytest.raises(InputError, match=r"no chain at distil_cpu\. Did you mean distill_cpu\?"):
        read_chain(Path("distil_cpu"))
    with pytest.raises(InputError, match=r"no overlay at asynchron\. Did you mean asynchronous\?"):
        load_recipe(Path("dapo_32b"), ["@asynchron"])
    with pytest.raises(InputError, match=rf"at my\.yaml\. The ones shipped are in {ROOT}/recipes"):
        load_recipe(Path("my.yaml"))


def test_a_name_that_looks_like_a_hub_id_is_a_recipe(here: Path) -> None:
    assert not is_model(Path("published/dapo_32b"))
    assert is_model(Path("published/dapo_33b"))


def test_stems_are_unique_so_that_names_are() -> None:
    for kind in ("recipe", "chain", "overlay"):
        stems = [file.stem for file in files(kind)]
        assert len(stems) == len(set(stems)) > 0


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
