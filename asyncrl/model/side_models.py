"""Models beside the policy, the teacher and opponents, as far as they are known without torch: folder, size,
the tokens that they never sample."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.dtype import find_dtype
from asyncrl.model.folder import read_shape
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import FILES, WITHOUT_WEIGHTS, model_folder
from asyncrl.model.unsampled import Unsampled, find_unsampled
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import shown
from asyncrl.system.files import read_text
from asyncrl.system.machine import bfloat16_flag
from asyncrl.system.paths import nearest_path

TEACHER = "teacher"
"""Name of the process of the run's own teacher."""


@dataclass(frozen=True, slots=True)
class SideModel:
    recipe: Recipe
    """The run's, with this model in place of the policy and its server in place of those of rollouts."""
    folder: Path
    shape: ModelShape | None
    """None of an architecture that the trainer does not know: SGLang may."""
    context_tokens: int
    vocab_size: int
    """Rows of its output layer."""
    dtype: str
    """Type of the weights on the run's own server."""
    unsampled: Unsampled
    """Those of the run, and rows that the policy lacks."""


def read_side_models(recipe: Recipe) -> dict[str, SideModel]:
    """Those of the recipe, by the names of their processes. Raises InputError."""
    found = {TEACHER: read_teacher(recipe)} if recipe.teacher.is_on() else {}
    for name in recipe.agent.opponents:
        found[opponent_process(name)] = read_opponent(recipe, name)
    return found


def opponent_process(name: str) -> str:
    """Name of the process of the opponent `name`."""
    return f"opponent {name}"


def side_recipe(recipe: Recipe, process: str) -> Recipe:
    """The recipe of the side model with a process of that name."""
    if process == TEACHER:
        return recipe.of_teacher()
    return recipe.of_opponent(process.removeprefix(opponent_process("")))


def side_processes(recipe: Recipe) -> list[str]:
    """Names of the processes of side models that the run starts."""
    teacher = [TEACHER] if recipe.teacher.num_started() else []
    return [*teacher, *map(opponent_process, recipe.agent.opponents)]


def read_teacher(recipe: Recipe) -> SideModel:
    """The teacher of a recipe that has one. Raises InputError where it reads other tokens than the policy, or
    where config.json does not say what is needed."""
    found = _read(recipe, recipe.of_teacher(), teacher_folder(recipe), "teacher.path")
    _check_top_k(recipe, found.vocab_size - len(found.unsampled.ids))
    return found


def read_opponent(recipe: Recipe, name: str) -> SideModel:
    """As `read_teacher`, for the opponent `name` of agent.opponents."""
    own = recipe.of_opponent(name)
    return _read(recipe, own, model_folder(own.model), f"agent.opponents.{name}")


def _read(recipe: Recipe, own: Recipe, folder: Path, key: str) -> SideModel:
    if not folder.is_dir():
        raise InputError(
            f"{key} is {shown(folder)}, which is not a folder. Expected a Hugging Face model folder, "
            "a hub id (owner/name), or the folder of a run that has ended."
            f"{nearest_path(folder, Path.is_dir)}"
        )
    check_same_tokens(model_folder(recipe.model), folder, key)
    config = _read_config(folder, key)
    shape = known_shape(folder)
    vocab_size = int(config["vocab_size"])
    student = read_shape(model_folder(recipe.model)).vocab_size
    ids = find_unsampled(model_folder(recipe.model), recipe.rollout.stop_tokens).ids
    unsampled = Unsampled(tuple(id for id in (*ids, *range(student, vocab_size)) if id < vocab_size))
    context = int(config["max_position_embeddings"])
    return SideModel(own, folder, shape, context, vocab_size, _dtype(own, shape, config), unsampled)


def teacher_folder(recipe: Recipe) -> Path:
    """The folder; a teacher elsewhere needs no weights in it. Raises InputError where it is not on this
    machine."""
    files = FILES if recipe.teacher.url is None else WITHOUT_WEIGHTS
    return model_folder(recipe.of_teacher().model, files)


def check_length(model: SideModel, longest_trajectory: int, key: str) -> None:
    """Raises InputError where a trajectory may have more tokens than the model, which `key` names, takes; a
    server takes one less than its context."""
    if longest_trajectory >= model.context_tokens:
        raise InputError(
            f"{key} is {shown(model.folder)}, whose context of {model.context_tokens} tokens "
            f"holds texts of {model.context_tokens - 1}, but the longest prompt and its response have "
            f"{longest_trajectory}. Lower rollout.max_new_tokens or model.context_tokens."
        )


def _check_top_k(recipe: Recipe, num_sampled: int) -> None:
    top_k = recipe.teacher.top_k
    if top_k is not None and top_k > num_sampled:
        raise InputError(
            f"teacher.top_k is {top_k}, but there are {num_sampled} tokens that are ever sampled. Set it "
            "to a number up to that; 16 hold nearly all of a teacher's probability."
        )


def _read_config(folder: Path, key: str) -> dict[str, Any]:
    """The configuration; where a model has parts, such as vision, that of its text."""
    path = folder / "config.json"
    try:
        raw: dict[str, Any] = json.loads(read_text(path))
        config = {**raw, **(raw.get("text_config") or {})}
        int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{key} is {shown(folder)}, but {path} does not say its vocab_size and "
            f"max_position_embeddings ({type(error).__name__}: {error}). Expected a Hugging Face model "
            "folder."
        ) from error
    return config


def known_shape(folder: Path) -> ModelShape | None:
    """None of an architecture that the trainer does not know: SGLang may."""
    try:
        return read_shape(folder)
    except InputError:
        return None


def _dtype(own: Recipe, shape: ModelShape | None, config: dict[str, Any]) -> str:
    if shape is not None:
        return find_dtype(own, shape).name
    if own.model.dtype != "auto":
        return own.model.dtype
    return "float32" if bfloat16_flag() is None and own.placement.device == "cpu" else "bfloat16"


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
    named = [
        [repr(tokens[number]) if number in tokens else "none" for tokens in (own, others)]
        for number in differing[:NUM_SHOWN]
    ]
    shown_ids = "; ".join(
        f"{number} is {one} and {two}" for number, (one, two) in zip(differing, named, strict=False)
    )
    more = f"; and {len(differing) - NUM_SHOWN} more" if len(differing) > NUM_SHOWN else ""
    raise InputError(
        f"{key} is {shown(other)}, whose tokenizer differs from that of model.path ({shown(folder)}) in "
        f"{len(differing)} of {len(own.keys() | others.keys())} token ids: {shown_ids}{more}. Name a model "
        "of the same vocabulary."
    )


def _tokens(folder: Path) -> dict[int, str]:
    """Id -> token, of the vocabulary and of what is added to it. Raises InputError."""
    path = folder / TOKENIZER
    try:
        raw: dict[str, Any] = json.loads(read_text(path))
        vocabulary = raw["model"]["vocab"]
        if isinstance(vocabulary, dict):
            found = {int(number): str(token) for token, number in vocabulary.items()}
        else:  # [piece, score] pairs of a Unigram model
            found = {number: str(piece) for number, (piece, _) in enumerate(vocabulary)}
        return found | {int(added["id"]): str(added["content"]) for added in raw.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read as a tokenizer ({type(error).__name__}: {error}). Expected the "
            "tokenizer.json of a Hugging Face folder."
        ) from error
