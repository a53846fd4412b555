"""A project folder that works on a CPU at once: recipe, verifier, rows, and what to type."""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.system.places import RECIPE

SOURCE = Path(__file__).parent / "skeleton"
FILES = ("README.md", RECIPE, "verifier.py", "data/heldout.jsonl", "data/train.jsonl")


def write_skeleton(folder: Path) -> list[Path]:
    """The files written into `folder`, which is made. Raises InputError where one of them is there already;
    then none is written."""
    texts = {name: (SOURCE / name).read_text(encoding="utf-8") for name in FILES}
    return write_new(folder, texts)


def write_new(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Writes files that are not there yet. Raises InputError."""
    targets = {folder / name: text for name, text in texts.items()}
    if there := [str(path) for path in targets if path.exists() or path.is_symlink()]:
        are, them = ("is", "it") if len(there) == 1 else ("are", "them")
        raise InputError(
            f"{_joined(there)} {are} there already, and nothing is overwritten. Name another folder (asyncrl "
            f"init FOLDER), or move {them} away."
        )
    try:
        for path, text in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another program may have made it meanwhile.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be written: {error.strerror}. Name a folder that can."
        ) from error
    return list(targets)


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
