"""Digests of what makes tokens of a row's prompt, so that tokens of one rendering are never taken for those
of another."""

import hashlib
import json
from pathlib import Path

from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.system.digests import sha256_of


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
