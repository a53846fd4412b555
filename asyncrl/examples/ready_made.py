"""Base models that come with asyncrl: made once by `prepare` with the options in their made.json.

    python -m asyncrl.examples.ready_made [arithmetic] [reasoning]     makes them again: 265 CPU seconds

A copy takes no time, and is the same model on every CPU: one that is trained there rounds otherwise.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.recipe.sections.section import Section
from asyncrl.system.files import sha256_of

MODELS = Path(__file__).parent / "base_models"
MADE_NAME = "made.json"
"""{"options": what `prepare` was called with, "files": SHA-256 by name}."""
FILES = ("config.json", "generation_config.json", "model.safetensors")


def copy_model(folder: Path, options: Section, *, models: Path = MODELS) -> bool:
    """Writes the model that was made with `options` into `folder`, but no tokenizer. False: there is none.

    Raises InputError where one of its files was changed.
    """
    for made_path in sorted(models.glob(f"*/{MADE_NAME}")):
        made = json.loads(made_path.read_text(encoding="utf-8"))
        if made["options"] != _identity(options):
            continue
        for name, expected in made["files"].items():
            found = sha256_of(made_path.with_name(name))
            if found != expected:
                raise InputError(
                    f"{made_path.with_name(name)} has changed since it was made: its SHA-256 is {found}, "
                    f"expected {expected}. Install asyncrl again, or set prepare.options.ready_made to "
                    f"false, which trains the base model here."
                )
        folder.mkdir(parents=True)
        for name in made["files"]:
            shutil.copyfile(made_path.with_name(name), folder / name)
        return True
    return False


def keep_model(model: Path, options: Section, folder: Path) -> None:
    """Copies `model`, a folder that was made with `options`, to `folder`, where `copy_model` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(model / name, folder / name)
    made = {"options": _identity(options), "files": {name: sha256_of(folder / name) for name in FILES}}
    (folder / MADE_NAME).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def _identity(options: Section) -> object:
    return options.model_dump(mode="json", exclude={"ready_made"})


def main() -> int:
    from asyncrl.examples import gym_pretrain, pretrain

    one_digit = {"min_terms": 6, "max_terms": 8, "min_digits": 1, "max_digits": 1}
    targets: dict[str, tuple[Callable[..., None], Section]] = {
        "arithmetic": (pretrain.prepare, pretrain.SumsOptions(task="arithmetic", ready_made=False)),
        "reasoning": (
            gym_pretrain.prepare,
            gym_pretrain.ChainSumOptions(config=one_digit, heldout_size=256, ready_made=False),
        ),
    }
    for name in sys.argv[1:] or targets:
        target, options = targets[name]
        with tempfile.TemporaryDirectory() as made:
            target(Path(made), lambda stage, done, total: None, **options.model_dump())
            keep_model(Path(made) / "model", options, MODELS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
