"""`asyncrl chain CHAIN`: runs recipes one after the other, each from the model that an earlier one made."""

import argparse
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from asyncrl.commands import train
from asyncrl.errors import InputError
from asyncrl.observe.terminal.stderr import warn_on_stderr
from asyncrl.recipe.complaint import complaint
from asyncrl.recipe.file import absolute_override, load_recipe
from asyncrl.recipe.sections.section import Section
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.system.text_file import read_text

HELP = (
    "Train the stages of a chain, one recipe after the other. Run it again to resume at the stage and step."
)


class Stage(Section):
    """One recipe of a chain."""

    recipe: str
    """Relative to the chain's folder."""
    overrides: list[str] = []
    """Keys as on the command line, such as trainer.num_steps=20; paths in them are relative to the
    chain's folder, too."""

    def words(self, folder: Path) -> tuple[Path, list[str]]:
        """The recipe and its overrides as `load_recipe` takes them, of a chain in `folder`."""
        return folder / self.recipe, [absolute_override(override, folder) for override in self.overrides]


class Chain(Section):
    """A file that lists stages, in their order."""

    stages: Annotated[list[Stage], Field(min_length=1)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "chain", type=Path, help="a YAML file: stages, a list of recipes or {recipe, overrides}"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when each stage reached its end; else the exit code of the first that did not. Raises InputError."""
    warn_on_stderr()
    chain, folder = read_chain(arguments.chain), arguments.chain.parent
    # What is wrong in a later recipe is said before hours of the first.
    names = [load_recipe(*stage.words(folder)).name for stage in chain.stages]
    for number, (stage, name) in enumerate(zip(chain.stages, names, strict=True), start=1):
        print(f"stage {number} of {len(names)}: {name}", flush=True)
        recipe, overrides = stage.words(folder)
        code = train.run(argparse.Namespace(recipe=recipe, overrides=overrides))
        if code:
            return code
    return 0


def read_chain(path: Path) -> Chain:
    """Raises InputError."""
    try:
        raw: Any = read_yaml(read_text(path))
    except FileNotFoundError:
        raise InputError(f"There is no chain at {path}.") from None
    except (yaml.YAMLError, OSError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("stages"), list):
        raise InputError(f"{path} holds no list `stages`, expected one such as: stages: [sft.yaml, rl.yaml].")
    stages = [{"recipe": stage} if isinstance(stage, str) else stage for stage in raw["stages"]]
    try:
        return Chain.model_validate({**raw, "stages": stages})
    except ValidationError as error:
        raise InputError("\n".join(f"{path}: {complaint(each, Chain)}" for each in error.errors())) from None
