"""Digests of tasks: what makes tokens of a prompt, and the name under which the cache keeps packed rows."""

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import BaseModel

import asyncrl
import verifiers
from asyncrl.data.digests import digest_of
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe, Source
from asyncrl.recipe.sections.section import TASK_ROWS, marked, value_at
from asyncrl.system.files import sha256_of
from asyncrl.system.hub import is_hub_id

# None where something decides that has no digest: the user's own columns function, whose file may import
# others, or a chat template that writes the date. Data of few bytes are not worth keeping.
SMALL_BYTES = 16 * 2**20
"""Files of fewer bytes are read at each start."""
_COMPRESSION = 16
"""How much more a parquet file may hold than it has bytes."""
_LIBRARIES = ("jinja2", "tokenizers", "pyarrow")


def table_name(recipe: Recipe, codec: TextCodec, context_tokens: int) -> str | None:
    """Raises InputError for data that cannot be read."""
    sources = recipe.data.train_sources()
    if _is_small(sources) or _has_own_columns(sources) or (rendering := codec.fingerprint) is None:
        return None
    decides = [
        digest_of(sources, "data.train"),
        sources,
        {key: value_at(recipe, key) for key in marked(Recipe, TASK_ROWS)},
        [rendering, context_tokens],
        [_own_code(), sys.version, *map(importlib.metadata.version, _LIBRARIES)],
    ]
    return hashlib.sha256(json.dumps(decides, default=_plain, sort_keys=True).encode()).hexdigest()[:32]


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


def _has_own_columns(sources: Sequence[Source]) -> bool:
    return any(isinstance(source.columns, str) and ":" in source.columns for source in sources)


def _is_small(sources: Sequence[Source]) -> bool:
    """Whether all are local and together below SMALL_BYTES; what cannot be read is found when it is read."""
    total = 0
    for source in sources:
        if source.path is None:
            return False
        path = Path(source.path)
        if is_hub_id(source.path):
            return False
        files = path.rglob("*") if path.is_dir() else [path]
        for file in filter(Path.is_file, files):
            total += file.stat().st_size * (_COMPRESSION if file.suffix == ".parquet" else 1)
    return total < SMALL_BYTES


@cache
def _own_code() -> str:
    """A digest of the code that reads, renders and parses rows."""
    home = Path(asyncrl.__path__[0])
    folders = [Path(verifiers.__path__[0]), *(home / name for name in ("data", "model", "tasks", "turns"))]
    digest = hashlib.sha256()
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def template_digest(recipe: Recipe, codec: TextCodec) -> str:
    """SHA-256 of section `prompt` and of the model's chat template with all that it is told but the time."""
    chat = codec.template
    parts = {
        "prompt": None if recipe.prompt is None else recipe.prompt.model_dump(mode="json"),
        "chat": None if chat is None else [chat.source, chat.special_tokens, chat.tools, chat.arguments],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def tokenizer_digest(model_folder: Path) -> str:
    """SHA-256 of tokenizer.json. Raises OSError."""
    return sha256_of(model_folder / "tokenizer.json")
