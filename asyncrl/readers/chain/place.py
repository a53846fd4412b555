"""The folder of a chain that a user named: the folder itself, or the file that lists the stages."""

from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.recipe.chain import read_chain
from asyncrl.recipe.file import shown
from asyncrl.recipe.shipped import is_named
from asyncrl.run.chain_folder import CHAIN


def chain_folder(path: Path) -> Path | None:
    """None for what is no chain. Raises InputError for a file that is no chain, and for one of a chain that
    has not begun."""
    if (path / CHAIN).is_file():
        return path
    if not path.is_file() and not is_named(path, "chain"):
        return None
    folder = Path(read_chain(path).folder)
    if not (folder / CHAIN).is_file():
        raise InputError(
            f"The chain {path} has not begun: {shown(folder)} has no {CHAIN}. Begin it: asyncrl chain {path}."
        )
    return folder
