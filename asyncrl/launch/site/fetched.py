"""Files of the controller's disk that a process on another node needs, fetched to a folder of this node.

A server needs the base model. A trainer also needs the recipe with paths of this node, the files of its loss
terms and the run's checkpoints. Blocking; knows nothing of Ray.
"""

import hashlib
from pathlib import Path
from typing import Any

from asyncrl.recipe.file import object_files, with_changed_files
from asyncrl.recipe.yaml_text import read_yaml, write_yaml
from asyncrl.system.places import CHECKPOINTS, RECIPE, cache_folder
from asyncrl.wire.fetch import fetch_alone, fetch_file
from asyncrl.wire.file_service import LISTING, checkpoints_url, model_url, recipe_url, term_url


def fetch_model(controller: str, *, token: str) -> Path:
    """The base model of the run at `controller`. Raises FetchFailed."""
    url = model_url(controller)
    # Named by what is in it: another run may have another model.
    name = hashlib.sha256(fetch_file(f"{url}/{LISTING}", token=token)).hexdigest()[:16]
    return fetch_alone(url, cache_folder("models") / name, token=token)


def fetch_recipe(controller: str, *, token: str) -> dict[str, Any]:
    """The resolved recipe of the run at `controller`, with the controller's paths. Raises FetchFailed."""
    raw: dict[str, Any] = read_yaml(fetch_file(recipe_url(controller), token=token).decode())
    return raw


def fetch_run(controller: str, name: str, *, token: str) -> Path:
    """A run folder on this node, called `name`, in which a trainer continues the run at `controller`.

    Its checkpoints become those of the controller, which hold all that was committed. Raises FetchFailed.
    """
    folder = node_run_folder(name)
    raw = fetch_recipe(controller, token=token)
    raw["model"] |= {"path": str(fetch_model(controller, token=token)), "revision": None}
    raw["run_folder"] = str(folder)
    terms: dict[str, Path] = {}
    for number, file in enumerate(object_files(raw["algorithm"])):
        terms[file] = folder / "terms" / str(number) / Path(file).name
        _fetch_to(terms[file], term_url(controller, number), token)
    raw["algorithm"] = with_changed_files(raw["algorithm"], lambda file: str(terms[file]))
    fetch_alone(checkpoints_url(controller), folder / CHECKPOINTS, token=token)
    (folder / RECIPE).write_text(write_yaml(raw), encoding="utf-8")
    return folder


def node_run_folder(name: str) -> Path:
    """Where `fetch_run` puts a run."""
    return cache_folder("runs") / name


def _fetch_to(file: Path, url: str, token: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(fetch_file(url, token=token))
