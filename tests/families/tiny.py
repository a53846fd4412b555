"""An entry of the registry of families: a tiny model, its chat, and published models of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """How published chat models of a family end what they write."""

    template: str
    """A file of tests/model/chat_templates, without its suffix."""
    end: str
    """The token that ends a turn of the assistant."""
    stops: tuple[str, ...]
    """eos_token_id of generation_config.json, as texts."""
    last_end: str | None = None
    """The token that ends the last turn of a conversation, where the template has another one there."""
    in_history: str | None = None
    """Text that the template writes for the end where messages follow, and that no response ends with."""
    others: tuple[str, ...] = ()
    """Further special tokens of the template."""
    bos_token: str | None = None
    eos_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """One family. `asyncrl.model.families` says what the code does with it; here is what tests need."""

    config: str
    """The name of its configuration in transformers, without "Config"."""
    settings: Config = field(default_factory=dict)
    """Settings of the tiny model. `layer_types` is repeated for all layers."""
    variants: Mapping[str, Config] = field(default_factory=dict)
    """Further models, by what they are: settings on top."""
    served: Config = field(default_factory=dict)
    """Settings of the tiny model on servers, on top."""
    trainer: Config = field(default_factory=dict)
    """Keys of the recipe's trainer."""
    lora: Config = field(default_factory=dict)
    """Keys of model.lora, where not every matrix takes an adapter."""
    limit: float = 2e-5
    """Largest difference of a log-prob from transformers'."""
    chat: Chat
    published: Mapping[str, tuple[Config, int]] = field(default_factory=dict)
    """Hub id -> (config.json as far as it decides anything, parameters as its card counts them), as
    published.yaml has them."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Property (properties.py) -> the cell of docs/models.md: "no: REASON" or "GPU only: REASON"."""


CHATML = Chat(template="qwen2_5", end="<|im_end|>", stops=("<|im_end|>", "<|endoftext|>"))
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 8.0,
    "low_freq_factor": 1.5,
    "high_freq_factor": 6.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
