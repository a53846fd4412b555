"""Text <-> tokens for the controller: the model folder's tokenizer and chat template, without transformers.

Tokens that a model produced are never re-tokenised: text is only decoded, for verifiers and people.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from asyncrl.errors import InputError


class TextCodec:
    """The tokenizer of one model folder. Raises InputError when the folder has none."""

    def __init__(self, model_folder: Path) -> None:
        path = model_folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(
                f"{model_folder} has no tokenizer.json. model.path must be a Hugging Face folder."
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file that it cannot read
            raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error
        self._config = _read_json(model_folder / "tokenizer_config.json")
        self._template = _chat_template(model_folder, self._config)
        self.stop_token_ids = _stop_token_ids(model_folder)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text with special tokens kept, the final stop token left out."""
        ids = list(tokens)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def render_prompt(self, prompt: str | list[dict[str, Any]]) -> tuple[str, tuple[int, ...]]:
        """Text and tokens of a row's prompt: a string as it is, chat messages by the model's template."""
        if isinstance(prompt, str):
            return prompt, self.encode(prompt)
        if self._template is None:
            raise InputError("the prompt is chat messages but the model folder has no chat template")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_exception
        special = {k: _content(v) for k, v in self._config.items() if k.endswith("_token") and v}
        try:
            text = environment.from_string(self._template).render(
                messages=prompt, add_generation_prompt=True, **special
            )
        except TemplateError as error:
            raise InputError(f"the chat template does not accept these messages: {error}") from error
        # The template already wrote the special tokens that open a conversation.
        return text, self.encode(text, add_special_tokens=False)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _content(token: Any) -> Any:
    return token["content"] if isinstance(token, dict) else token


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    return template if isinstance(template, str) else None


def _stop_token_ids(folder: Path) -> tuple[int, ...]:
    """eos_token_id of generation_config.json, else of config.json. Raises InputError when there is none."""
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(folder / name).get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    raise InputError(
        f"{folder} names no eos_token_id in generation_config.json or config.json: nothing would stop."
    )
