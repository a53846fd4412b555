"""Whether two models read token ids alike: log-probs of one model's tokens by another mean nothing
otherwise."""

import json
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.recipe.file import shown
from asyncrl.system.text_file import read_text

TOKENIZER = "tokenizer.json"
NUM_SHOWN = 3
"""Ids that a refusal names."""


def check_same_tokens(folder: Path, other: Path, key: str) -> None:
    """Raises InputError where an id stands for one token in the model `folder` and for another, or for none,
    in `other`, which `key` of the recipe names. How text is split is no matter here: ids alone are
    exchanged."""
    own, others = _tokens(folder), _tokens(other)
    differing = sorted(token for token in own.keys() | others.keys() if own.get(token) != others.get(token))
    if not differing:
        return
    shown_ids = "; ".join(
        f"{token} is {_named(own.get(token))} and {_named(others.get(token))}"
        for token in differing[:NUM_SHOWN]
    )
    more = f"; and {len(differing) - NUM_SHOWN} more" if len(differing) > NUM_SHOWN else ""
    raise InputError(
        f"{key} is {shown(other)}, whose tokenizer differs from that of model.path ({shown(folder)}) in "
        f"{len(differing)} of {len(own.keys() | others.keys())} token ids: {shown_ids}{more}. Name a teacher "
        "of the same vocabulary."
    )


def _named(token: str | None) -> str:
    return "none" if token is None else repr(token)


def _tokens(folder: Path) -> dict[int, str]:
    """Id -> token, of the vocabulary and of what is added to it. Raises InputError."""
    path = folder / TOKENIZER
    try:
        raw: dict[str, Any] = json.loads(read_text(path))
        vocabulary = raw["model"]["vocab"]
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else _pieces(vocabulary)
        found = {int(number): str(token) for token, number in pairs}
        return found | {int(added["id"]): str(added["content"]) for added in raw.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read as a tokenizer ({type(error).__name__}: {error}). Expected the "
            "tokenizer.json of a Hugging Face folder."
        ) from error


def _pieces(vocabulary: list[list[Any]]) -> list[tuple[str, int]]:
    """(token, id) of a Unigram model's [piece, score] pairs."""
    return [(str(piece), number) for number, (piece, _) in enumerate(vocabulary)]
