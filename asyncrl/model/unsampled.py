"""Which token ids of a model are never sampled: those that no text contains.

No text has trained their rows. The row of a pad is often exactly zero, and RMSNorm multiplies the gradient
of a zero vector by 1 / sqrt(epsilon): sampled once, such a token makes the whole gradient of its step, and
clipping shrinks everything else. Servers mask these ids before they sample, the trainer masks them in its
softmax, so both speak of the same distribution.

The rule, on the files of the model folder and `rollout.stop_tokens`. An id below vocab_size (config.json) is
never sampled where

1. tokenizer.json has no token of that id: a row that pads the embedding, or a hole; or
2. its token is one that tokenizer.json adds to its vocabulary ("added_tokens"), and it is the pad token
   (pad_token of tokenizer_config.json or special_tokens_map.json, pad_token_id of config.json or
   generation_config.json) or has the name of a reserved place (RESERVED), such as
   <|reserved_special_token_7|>,

unless text does contain it: it ends responses (eos_token_id of config.json or generation_config.json,
eos_token of tokenizer_config.json, rollout.stop_tokens), the chat template writes it, or the tokenizer
encodes by it what it does not know. So <|endoftext|> of Qwen, pad and end token at once, stays; so do
<|im_start|>, <think> and <tool_call>, which are neither pad nor reserved. A pad_token_id that names an
ordinary word is a mistake of config.json and masks nothing.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.system.files import read_json_object

UNSAMPLED_VARIABLE = "ASYNCRL_UNSAMPLED"
"""Environment variable of a server: the ids that it never samples, as `str(Unsampled)`. Where it is not set
the server takes those of its own model folder."""
RESERVED = re.compile(
    r"\W*(?:reserved|unused|extra|dummy|filler|control|special|place.?holder)"
    r"(?:[_▁ -]?(?:special|token|id|no))*[_▁ -]?\d+\W*",
    re.IGNORECASE,
)
"""Names of places that a tokenizer keeps for tokens to come: a word for it and a number."""
NAMED_AT_MOST = 3
"""Tokens that `describe` names."""


@dataclass(frozen=True, slots=True)
class Unsampled:
    """Token ids that are never sampled."""

    ids: tuple[int, ...] = ()
    """Ascending."""
    names: dict[int, str] = field(default_factory=dict, compare=False, hash=False)
    """Token of each id that the tokenizer has."""

    def __str__(self) -> str:
        """Ranges of ids, such as "2,151669-151935"; `parse` reads them."""
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in _ranges(self.ids))

    @classmethod
    def parse(cls, text: str) -> "Unsampled":
        """Raises InputError."""
        ids: list[int] = []
        for part in filter(None, text.split(",")):
            found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
            if found is None:
                raise InputError(
                    f'{text!r} is not a list of token ids; expected one such as "2,151669-151935".'
                )
            ids.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
        return cls(tuple(sorted(set(ids))))

    def name(self, token: int) -> str:
        """The name of an id, for people."""
        return self.names.get(token, "which the tokenizer lacks")

    def describe(self) -> str:
        """For people: how many they are and which, such as "268 tokens: <pad> (id 2), ids 151,669-151,935
        that the tokenizer lacks"."""
        if not self.ids:
            return "none"
        shown = [f"{name} (id {i:,})" for i, name in self.names.items()]
        if len(shown) > NAMED_AT_MOST:
            shown[NAMED_AT_MOST:] = [f"{len(shown) - NAMED_AT_MOST} more that are reserved"]
        lacking = [i for i in self.ids if i not in self.names]
        if lacking:
            ranges = ", ".join(f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in _ranges(lacking))
            shown.append(f"id{'s' * (len(lacking) > 1)} {ranges} that the tokenizer lacks")
        return f"{len(self.ids):,} token{'s' * (len(self.ids) > 1)}: {', '.join(shown)}"


def find_unsampled(folder: Path, stop_tokens: Sequence[str] = ()) -> Unsampled:
    """Those of the model in `folder`, of which `stop_tokens` (rollout.stop_tokens) end a response; none where
    it has no tokenizer.json. Raises InputError for files that cannot be read."""
    tokenizer, config = read_json_object(folder / "tokenizer.json"), read_json_object(folder / "config.json")
    vocab_size = config.get("vocab_size")
    if not tokenizer or not isinstance(vocab_size, int):
        return Unsampled()
    added = _added_tokens(tokenizer)
    known = _vocabulary(tokenizer) | added.keys()
    special = {
        **read_json_object(folder / "special_tokens_map.json"),
        **read_json_object(folder / "tokenizer_config.json"),
    }
    configs = (config, read_json_object(folder / "generation_config.json"))
    pads, ends = (
        {i for one in configs for i in _ids(one.get(f"{role}_token_id"))}
        | {i for i, name in added.items() if name == _content(special.get(f"{role}_token"))}
        for role in ("pad", "eos")
    )
    names = {i: name for i, name in added.items() if i in pads or RESERVED.fullmatch(name)}
    kept = {*stop_tokens, _unknown(tokenizer)}
    template = _templates(folder, special)
    masked = {
        i: name
        for i, name in sorted(names.items())
        if i < vocab_size and i not in ends and name not in kept and name not in template
    }
    return Unsampled(tuple(sorted({*masked, *(i for i in range(vocab_size) if i not in known)})), masked)


def _ranges(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of ascending ids."""
    first = last = None
    for i in ids:
        if last is not None and first is not None and i != last + 1:
            yield first, last
            first = None
        first, last = i if first is None else first, i
    if first is not None and last is not None:
        yield first, last


def _added_tokens(tokenizer: dict[str, Any]) -> dict[int, str]:
    found = tokenizer.get("added_tokens") or []
    return {token["id"]: token["content"] for token in found if {"id", "content"} <= token.keys()}


def _vocabulary(tokenizer: dict[str, Any]) -> set[int]:
    """Ids of the tokens that it was trained with; a unigram model lists them in their order."""
    found = tokenizer.get("model", {}).get("vocab") or {}
    return set(found.values()) if isinstance(found, dict) else set(range(len(found)))


def _unknown(tokenizer: dict[str, Any]) -> str | None:
    """The token for text that has none, unless such text becomes tokens of its bytes."""
    model = tokenizer.get("model", {})
    if model.get("byte_fallback"):
        return None
    if isinstance(model.get("unk_id"), int):
        return str(model["vocab"][model["unk_id"]][0])
    found: str | None = model.get("unk_token")
    return found


def _ids(given: Any) -> list[int]:
    return [i for i in (given if isinstance(given, list) else [given]) if isinstance(i, int)]


def _content(token: Any) -> Any:
    """The name of a special token, which some files write with its settings."""
    return token.get("content") if isinstance(token, dict) else token


def _templates(folder: Path, config: dict[str, Any]) -> str:
    """Everything that the chat templates of the folder are written of."""
    files = [folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    written = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    return "\n".join([*written, json.dumps(config.get("chat_template"), ensure_ascii=False)])
