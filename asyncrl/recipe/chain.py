"""Chains of stages as files: YAML to checked stages, with absolute paths, and back.

A stage trains with a recipe, or selects responses as data for a later one. Paths in a chain are relative to
its folder.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Field, Tag, ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe import shipped
from asyncrl.recipe.complaint import complaint
from asyncrl.recipe.file import absolute, absolute_object, absolute_override
from asyncrl.recipe.sections.section import Positive, Section
from asyncrl.system.hub import is_hub_id


class TrainStage(Section):
    """A recipe that is trained."""

    recipe: str
    overrides: list[str] = []
    """Keys as on the command line, such as trainer.num_steps=20; paths in them are relative to the chain's
    folder, too."""

    def absolute(self, folder: Path) -> "TrainStage":
        """The stage as seen from any folder. Raises InputError."""
        return TrainStage(
            recipe=absolute(self.recipe, folder),
            overrides=[absolute_override(override, folder) for override in self.overrides],
        )


class SelectStage(Section):
    """A selection of responses, by the options of `asyncrl select`, whose names the keys have."""

    select: str
    """A run, a recipe, or a model with data.train=FILE among the overrides."""
    out: str
    """File that later stages name, such as by data.train: .jsonl or .parquet."""
    overrides: list[str] = []
    """Keys as on the command line; paths in them are relative to the chain's folder, too."""
    choose: str = "correct"
    limit: Positive | None = None
    tokens: bool = False
    n: Positive | None = None
    compacted: bool = False
    all_rows: bool = False
    at: str | int | None = None
    steps: str | None = None
    versions: str | None = None
    length: str | None = None
    source: list[str] = []
    rows: str | None = None
    score: str | None = None
    verifier: str | None = None
    set: list[str] = []
    """Options of the verifier, KEY=VALUE each."""

    def absolute(self, folder: Path) -> "SelectStage":
        """The stage as seen from any folder. Raises InputError."""
        is_hub = is_hub_id(self.select, folder)
        changed = {
            "select": self.select if is_hub else absolute(self.select, folder),
            "out": absolute(self.out, folder),
            "overrides": [absolute_override(override, folder) for override in self.overrides],
            "verifier": self.verifier and absolute_object(self.verifier, folder),
        }
        return self.model_copy(update=changed)


Stage = Annotated[
    Annotated[TrainStage, Tag("<recipe>")] | Annotated[SelectStage, Tag("<select>")],
    Discriminator(
        lambda value: (
            "<select>"
            if isinstance(value, SelectStage) or (isinstance(value, dict) and "select" in value)
            else "<recipe>"
        )
    ),
]


class Chain(Section):
    """A file that lists stages, in their order."""

    name: str = ""
    """Name of the chain. Default: the file's, without its ending."""
    folder: str = "runs/{name}"
    """Folder of the chain, relative to the file's: its report, and what each selection saw. Running again on
    it resumes. {name} is replaced."""
    stages: Annotated[list[Stage], Field(min_length=1)]


def read_chain(path: Path) -> Chain:
    """The chain at `path`, or the shipped one of that name, with its name and absolute paths. Raises
    InputError."""
    found = shipped.find(path, "chain")
    raw = shipped.read_plain(found.file, "chain", "A chain is a YAML file with `stages`.")
    if not isinstance(raw, dict) or not isinstance(raw.get("stages"), list):
        raise InputError(f"{path} holds no list `stages`, expected one such as: stages: [sft.yaml, rl.yaml].")
    stages = [{"recipe": stage} if isinstance(stage, str) else stage for stage in raw["stages"]]
    try:
        chain = Chain.model_validate({**raw, "stages": stages})
    except ValidationError as error:
        raise InputError("\n".join(f"{path}: {complaint(each, Chain)}" for each in error.errors())) from None
    name = chain.name or found.file.stem
    place = os.path.abspath(found.folder)
    return Chain(
        name=name,
        folder=absolute(chain.folder.replace("{name}", name), Path(place)),
        stages=[stage.absolute(Path(place)) for stage in chain.stages],
    )
