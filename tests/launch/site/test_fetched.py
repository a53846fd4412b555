"""What a trainer on another node begins with: what the controller's recipe names is on its node."""

import asyncio
from pathlib import Path

import pytest
from fakes.models import write_model
from fakes.recipes import make_recipe
from fakes.requests import NoRequests

from asyncrl.algorithms.contract import check_terms
from asyncrl.controller.http_service import ControllerService
from asyncrl.launch.site.fetched import fetch_run
from asyncrl.recipe.file import dump_recipe, load_recipe, object_files
from asyncrl.run.checkpoints import saved_versions
from asyncrl.wire.access import Keys
from asyncrl.wire.files.service import FileRoutes

TERM = """
def doubled(inputs, algorithm):
    return -2 * inputs.advantages * inputs.current
"""


async def test_a_trainer_elsewhere_finds_model_terms_and_checkpoints_on_its_own_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node"))
    model, run, term = write_model(tmp_path / "model"), tmp_path / "run", tmp_path / "mine.py"
    term.write_text(TERM)
    (run / "checkpoints" / "step-8").mkdir(parents=True)
    (run / "checkpoints" / "step-8" / "rank-0").write_text("weights")
    recipe = make_recipe(
        model, algorithm={"surrogate": f"{term}:doubled"}, cluster={"backend": "ray", "shared_disk": False}
    )
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    # What an earlier trainer left on this node and never committed is not continued.
    left = tmp_path / "node" / "asyncrl" / "runs" / "mine" / "checkpoints" / "step-12"
    left.mkdir(parents=True)
    (left / "rank-0").write_text("weights that nobody committed")
    terms = object_files(recipe.algorithm.model_dump())
    service = ControllerService(NoRequests(), files=FileRoutes(model, run, terms), keys=Keys("token"))
    await service.start()
    try:
        folder = await asyncio.to_thread(fetch_run, service.url, "mine", token="token")
    finally:
        await service.close()
    there = load_recipe(folder / "recipe.yaml")
    text = (folder / "recipe.yaml").read_text()
    for elsewhere in (model, run, term):
        assert f"{elsewhere}\n" not in text and f"{elsewhere}:" not in text
    assert (Path(there.model.path) / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert saved_versions(folder / "checkpoints") == [8]
    term.unlink()
    check_terms(there.algorithm)
