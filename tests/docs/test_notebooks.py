"""The notebooks of docs/ in a real kernel: every cell runs, on tiny models in place of theirs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.base_model import write_base_model

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
SIZES = {
    "model": {"path": "model", "context_tokens": 96},
    "trainer": {"learning_rate": 1e-3},
    "evaluation": {"every_steps": 0},
    "placement": {"device": "cpu"},
}
RL = {
    **SIZES,
    "name": "rl",
    "data": {"train": "rows.jsonl", "heldout": "rows.jsonl"},
    "rollout": {"groups_per_batch": 4, "samples_per_group": 2, "max_new_tokens": 8},
    "serving": {"max_total_tokens": 4096, "max_running_requests": 16},
    "evaluation": {"every_steps": 0, "num_tasks": 4, "max_new_tokens": 8},
}
SFT = {**SIZES, "name": "sft", "stage": "sft", "data": {"train": "rows.jsonl"}, "sft": {"rows_per_batch": 8}}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Tiny recipes in place of those that the notebooks name."""
    write_base_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(8))
    )
    for recipe in (RL, SFT):
        (tmp_path / f"{recipe['name']}.yaml").write_text(yaml.safe_dump(recipe))
    yield tmp_path


def executed(notebook: str, parameters: str, folder: Path) -> list[Any]:
    """The code cells of the notebook after a run of all of them, with `parameters` for theirs."""
    nbformat = pytest.importorskip("nbformat", reason="make setup DOCS=1")
    nbclient = pytest.importorskip("nbclient", reason="make setup DOCS=1")
    book = nbformat.read(NOTEBOOKS / notebook, as_version=4)
    (cell,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    cell.source = parameters
    nbclient.NotebookClient(book, timeout=400, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell for cell in book.cells if cell.cell_type == "code"]


def shown(cell: Any) -> str:
    return "".join(str(output.get("data", output.get("text", ""))) for output in cell.outputs)


@pytest.mark.slow
def test_the_first_notebook_trains_with_a_function_of_its_own(folder: Path) -> None:
    cells = executed("first_run.ipynb", 'recipe, steps = "rl.yaml", 2', folder)
    waits = next(cell for cell in cells if cell.source == "run.wait()")
    assert "finished, step 2 of 2" in shown(waits) and "<svg" in shown(waits) and "<table>" in shown(waits)
    assert "greedy_accuracy" in shown(cells[-1]) and "step 2 (last)" in shown(cells[-1])
    (source,) = folder.glob("runs/rl-1/call/is_sum-*.py")
    assert "BOX = re.compile(" in source.read_text()


@pytest.mark.slow
def test_a_second_stage_begins_with_the_model_of_the_first(folder: Path) -> None:
    parameters = 'sft_recipe, rl_recipe, steps = "sft.yaml", "rl.yaml", 2'
    cells = executed("two_stages.ipynb", parameters, folder)
    assert "runs/sft-1/checkpoints/step-2/hf" in shown(cells[-1]) and "finished" in shown(cells[-1])
