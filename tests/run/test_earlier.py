"""`model.path` may name a run: its last step, its best one, or any that it has exported."""

import json
from pathlib import Path

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.journal.starts import RunEnd, record_end
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe
from asyncrl.run.earlier import with_earlier_run


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run of 8 steps that exported the last one and its best, step 4."""
    run = tmp_path / "sft"
    for step in (2, 4, 8):
        (run / f"checkpoints/step-{step}").mkdir(parents=True)
    for step in (4, 8):
        (run / f"checkpoints/step-{step}/hf").mkdir()
    (run / "checkpoints/heldout.json").write_text(json.dumps({"2": -0.1, "4": -0.2, "8": -0.3}))
    (run / "recipe.yaml").write_text(dump_recipe(make_recipe(tmp_path)))
    journal = Journal(run / "journal.sqlite")
    record_end(journal, RunEnd(version=8, reason="num_steps"))
    journal.close()
    return run


def recipe_on(path: str, tmp_path: Path) -> Recipe:
    return make_recipe(Path(path), run_folder=str(tmp_path / "next"))


@pytest.mark.parametrize(("which", "step"), [("", 8), ("@best", 4), ("@4", 4)])
def test_a_run_is_the_model_of_one_of_its_steps(earlier: Path, tmp_path: Path, which: str, step: int) -> None:
    found = with_earlier_run(recipe_on(f"{earlier}{which}", tmp_path)).model.path
    assert found == f"{earlier}/checkpoints/step-{step}/hf"
    assert with_earlier_run(recipe_on(found, tmp_path)).model.path == found


def test_a_resumed_run_keeps_the_step_that_it_began_with(earlier: Path, tmp_path: Path) -> None:
    began = with_earlier_run(recipe_on(str(earlier), tmp_path))
    (tmp_path / "next").mkdir()
    (tmp_path / "next/recipe.yaml").write_text(dump_recipe(began))
    (earlier / "checkpoints/step-12/hf").mkdir(parents=True)
    journal = Journal(earlier / "journal.sqlite")
    record_end(journal, RunEnd(version=12, reason="num_steps"))
    journal.close()
    assert with_earlier_run(recipe_on(str(earlier), tmp_path)).model.path == began.model.path
    assert with_earlier_run(recipe_on(f"{earlier}@12", tmp_path)).model.path.endswith("step-12/hf")


def test_a_run_that_has_not_ended_and_a_step_without_an_export_are_refused(
    earlier: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError,
        match=r"neither a Hugging Face folder nor a whole checkpoint of step 2; it has folders of 4, 8",
    ):
        with_earlier_run(recipe_on(f"{earlier}@2", tmp_path))
    (earlier / "checkpoints/heldout.json").unlink()
    with pytest.raises(InputError, match=r"@best, but that run measured nothing on held-out data"):
        with_earlier_run(recipe_on(f"{earlier}@best", tmp_path))
    (earlier / "journal.sqlite").unlink()
    Journal(earlier / "journal.sqlite").close()
    with pytest.raises(
        InputError, match=r"sft, but that run has not ended\. Let it end first: asyncrl train"
    ):
        with_earlier_run(recipe_on(str(earlier), tmp_path))


def test_a_folder_of_a_model_and_a_hub_id_stay(tmp_path: Path) -> None:
    for path in (str(tmp_path), "Qwen/Qwen3-0.6B"):
        recipe = recipe_on(path, tmp_path)
        assert with_earlier_run(recipe) == recipe
    with pytest.raises(InputError, match="@best, but no run is there"):
        with_earlier_run(recipe_on(f"{tmp_path}@best", tmp_path))


def test_an_opponent_may_be_a_step_of_a_run_and_a_resumed_run_keeps_it(earlier: Path, tmp_path: Path) -> None:
    def with_rival(path: str) -> Recipe:
        agent = {"command": ["true"], "opponents": {"rival": path}}
        return make_recipe(earlier, agent=agent, run_folder=str(tmp_path / "next"))

    began = with_earlier_run(with_rival(f"{earlier}@best"))
    assert began.agent.opponents == {"rival": f"{earlier}/checkpoints/step-4/hf"}
    (tmp_path / "next").mkdir()
    (tmp_path / "next/recipe.yaml").write_text(dump_recipe(began))
    (earlier / "checkpoints/heldout.json").write_text(json.dumps({"8": -0.1, "4": -0.2}))
    assert with_earlier_run(with_rival(f"{earlier}@best")).agent == began.agent
    with pytest.raises(InputError, match="agent.opponents.rival is .*@9, but"):
        with_earlier_run(with_rival(f"{earlier}@9"))
