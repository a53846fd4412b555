"""Shipped recipes, chains and overlays are named from any folder, and their paths are of that folder."""

from pathlib import Path

import pytest

from asyncrl.commands.arguments import is_model
from asyncrl.errors import InputError
from asyncrl.recipe.chain import read_chain
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.shipped import files, find
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
