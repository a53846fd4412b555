"""Text <-> tokens for the controller: the model folder's tokenizer and chat template, without transformers.

Tokens that a model produced are never re-tokenized: text is only decoded, for verifiers and people.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from asyncrl.errors import InputError, did_you_mean
from asyncrl.model.templates import read_chat_template
from asyncrl.model.token_text import StopStrings
from asyncrl.recipe import Rollout
from asyncrl.system.files import read_json_object
from asyncrl.system.words import as_written


class TextCodec:
    """The tokenizer of one model folder. Raises InputError when the folder has none, or when it lacks a token
    of rollout.stop_tokens.

    A chat template may write the date: that of `now`, so that a run has the same prompts on each day.
    """

    def __init__(
        self,
        model_folder: Path,
        *,
        rollout: Rollout | None = None,
        now: datetime | None = None,
        tools: list[dict[str, Any]] | None = None,
        stop: Sequence[str] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`rollout` and `stop` say what ends a response, or a turn, besides the model's own end tokens.
        `tools`: schemas of the tools that prompts offer. `template_arguments`: further variables of the
        chat template (prompt.chat_template_kwargs)."""
        path = model_folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(
                f"{model_folder} has no tokenizer.json. model.path must be a Hugging Face folder."
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file that it cannot read
            raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error
        self._path = path
        self._normalizer = self._tokenizer.normalizer
        self._keeps_ascii = type(self._normalizer).__name__ in ("NFC", "NFD", "NFKC", "NFKD")
        self._only_cuts = _only_cuts(self._tokenizer)
        self._num_special_tokens = self._tokenizer.num_special_tokens_to_add(False)
        self.takes_any_text = _takes_any_text(self._tokenizer)
        """No text is refused by `encode`, except for lone surrogates, which rows cannot hold."""
        self._opening = self._opening_token()
        config = read_json_object(model_folder / "tokenizer_config.json")
        self.template = read_chat_template(
            model_folder, config, now=now, tools=tools, arguments=template_arguments
        )
        """The chat template; None where the folder has none."""
        rollout = rollout or Rollout()
        own = _stop_token_ids(model_folder)
        asked = tuple(self._find_token(name, path) for name in rollout.stop_tokens)
        # A text that is one token ends a turn in the server; others the controller must find and stop.
        whole = [token for text in stop if (token := self._tokenizer.token_to_id(text)) is not None]
        self._end_ids = (*own, *asked)
        self.stop_token_ids = tuple(dict.fromkeys((*self._end_ids, *whole)))
        others = [text for text in stop if self._tokenizer.token_to_id(text) is None]
        self.stop = StopStrings((*rollout.stop, *others), self.exact_text)
        self._includes_stop = rollout.include_stop
        self._unseen_ids = own if rollout.include_stop else self._end_ids

    @property
    def fingerprint(self) -> str | None:
        """A digest of all that decides text and tokens of a prompt; None where the time decides, too."""
        template = "" if self.template is None else self.template.source
        if "strftime_now" in template:
            return None
        special = {} if self.template is None else self.template.special_tokens
        parts = [template, *(f"{k}={v}" for k, v in sorted(special.items()))]
        if self.template is not None and self.template.tools:
            parts.append(json.dumps(self.template.tools, sort_keys=True))
        if self.template is not None and self.template.arguments:
            parts.append(json.dumps(self.template.arguments, sort_keys=True))
        return hashlib.sha256(self._path.read_bytes() + "\0".join(parts).encode()).hexdigest()

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Raises InputError for text that the tokenizer has no tokens for."""
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except Exception as error:  # the library raises bare Exception, and TypeError for lone surrogates
            short = ascii(text if len(text) <= 80 else f"{text[:80]}...")
            raise InputError(f"the tokenizer has no tokens for {short}: {error}") from error

    def encode_inside(self, text: str) -> tuple[int, ...]:
        """Tokens of a text that follows others: nothing is put in front of it. Raises InputError as
        `encode`."""
        if not text:
            return ()
        end = self.piece(self.stop_token_ids[0])
        found = self.encode(end + text, add_special_tokens=False)
        # A tokenizer that writes a space in front of a text writes none behind an added token.
        if found[:1] == (self.stop_token_ids[0],):
            return found[1:]
        return self.encode(text, add_special_tokens=False)

    def added_token(self, text: str) -> int | None:
        """The id of a token that was added to the vocabulary, which text never merges into; None for
        others."""
        found = self._tokenizer.token_to_id(text)
        added = self._tokenizer.get_added_tokens_decoder()
        return found if found is not None and found in added else None

    def added_texts(self) -> dict[int, str]:
        """The tokens that were added to the vocabulary, and how they are written."""
        return {token: each.content for token, each in self._tokenizer.get_added_tokens_decoder().items()}

    def split_end(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """A turn without the token that ended it, and that token; none for one that a limit or the end of a
        call ended."""
        cut = len(tokens) - (bool(tokens) and tokens[-1] in self._end_ids)
        return list(tokens[:cut]), list(tokens[cut:])

    def end_texts(self) -> list[str]:
        """How the tokens that end a response are written, longest first."""
        return sorted((self.exact_text([token]) for token in self._end_ids), key=len, reverse=True)

    def without_added_tokens(self) -> "PlainEncoder":
        """An encoder of the same vocabulary for which no text is a special token."""
        return PlainEncoder(self._tokenizer)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text with special tokens kept, without the model's own end token at its end.

        With rollout.include_stop false it also ends before the first stop string or stop token.
        """
        ids = list(tokens)
        if ids and ids[-1] in self._unseen_ids:
            ids.pop()
        text = self.exact_text(ids)
        return text if self._includes_stop else text[: self.stop.first_in(text)]

    def _find_token(self, name: str, path: Path) -> int:
        found = self._tokenizer.token_to_id(name)
        if found is None:
            special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
            hint = did_you_mean(name, special, " For text of several tokens, use rollout.stop.")
            raise InputError(
                f"rollout.stop_tokens, or that of evaluation, names {name!r}, which is "
                f"not a token in {path}.{hint}"
            )
        return int(found)

    def exact_text(self, tokens: Sequence[int]) -> str:
        """All of the text, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """A token as the vocabulary writes it, such as "Ġthe"; empty for an id that it does not have."""
        return str(self._tokenizer.id_to_token(token) or "")

    def prompt_text(self, prompt: str | list[dict[str, Any]]) -> tuple[str, bool]:
        """Text of a row's prompt, and whether the tokenizer adds its special tokens to it.

        A string stays as it is, and opens with one beginning-of-sequence token. Chat messages are rendered by
        the model's template, and stay open where they end in one of the assistant's. Raises InputError.
        """
        if isinstance(prompt, str):
            # A prompt that opens with <bos> itself would get a second one.
            return prompt, self._opening is None or not prompt.startswith(self._opening)
        if self.template is None:
            raise InputError("the prompt is chat messages but the model folder has no chat template")
        # The template already wrote the special tokens that open a conversation.
        return self.template.render(prompt), False

    def render_prompt(self, prompt: str | list[dict[str, Any]]) -> tuple[str, tuple[int, ...]]:
        """Text and tokens of a row's prompt. Raises InputError."""
        text, adds_special_tokens = self.prompt_text(prompt)
        return text, self.encode(text, add_special_tokens=adds_special_tokens)

    def _opening_token(self) -> str | None:
        """The text of the one special token that the tokenizer adds, where it adds it in front."""
        if self._num_special_tokens != 1:
            return None
        try:
            first = self._tokenizer.encode("a", add_special_tokens=True).ids[0]
            bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        except Exception:  # as `encode`: a tokenizer that has no token for this letter
            return None
        return self.piece(first) if [first] != bare[:1] else None

    def most_tokens(self, text: str) -> int:
        """At least as many as `text` has, found without counting them.

        A token stands for one byte of the normalized text or more. A stretch that the tokenizer cuts out has
        one byte or more, too, and may get a space of the tokenizer's own.
        """
        is_normal = self._normalizer is None or (self._keeps_ascii and text.isascii())
        normalised = text if is_normal else self._normalizer.normalize_str(text)
        num_bytes = len(normalised) if normalised.isascii() else len(normalised.encode("utf-8", "replace"))
        # A stretch is normalized alone, which may make more of it than of the whole text.
        per_byte = 1 if is_normal and self._only_cuts else 2
        return per_byte * num_bytes + self._num_special_tokens

    def count_tokens(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[int]:
        """Token counts, on all cores. Raises InputError where the tokenizer has no tokens for one of them."""
        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except Exception as error:  # as `encode`
            raise InputError(f"the tokenizer has no tokens for one of {len(texts)} texts: {error}") from error
        return [len(one) for one in found]


class PlainEncoder:
    """Text -> tokens of which none is an added one, whatever the text says."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = json.loads(tokenizer.to_str())
        added = content.pop("added_tokens", [])
        content["added_tokens"], content["post_processor"] = [], None
        self._tokenizer = Tokenizer.from_str(json.dumps(content))
        self._added = {entry["id"]: entry["content"] for entry in added}

    def encode(self, text: str) -> list[int]:
        """Tokens of any text: characters that the tokenizer has no tokens for are left out."""
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception:  # the library raises bare Exception, and TypeError for lone surrogates
            return [] if len(text) < 2 else [token for character in text for token in self.encode(character)]
        if self._added.keys().isdisjoint(ids):
            return list(ids)
        # The vocabulary itself has the word: its two halves have other tokens.
        token = next(token for token in ids if token in self._added)
        word = self._added[token]
        if len(word) < 2 or word not in text:
            return [each for each in ids if each not in self._added]
        before, _, behind = text.partition(word)
        half = len(word) // 2
        return [part for piece in (before, word[:half], word[half:], behind) for part in self.encode(piece)]


def _only_cuts(tokenizer: Tokenizer) -> bool:
    """Whether it adds nothing to the normalized text, as most that work on bytes."""
    if tokenizer.pre_tokenizer is None:
        return True
    step = json.loads(tokenizer.pre_tokenizer.__getstate__())
    steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    return all(
        one["type"] in ("Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")
        or (one["type"] == "ByteLevel" and one["add_prefix_space"] is False)
        for one in steps
    )


def _takes_any_text(tokenizer: Tokenizer) -> bool:
    """Whether a word that is not in the vocabulary is no error: BPE leaves out what it does not know."""
    model = tokenizer.model
    if type(model).__name__ == "BPE":
        return True
    unknown = getattr(model, "unk_token", None)
    return unknown is not None and tokenizer.token_to_id(unknown) is not None


def _stop_token_ids(folder: Path) -> tuple[int, ...]:
    """eos_token_id of generation_config.json, else of config.json. Raises InputError when there is none."""
    for name in ("generation_config.json", "config.json"):
        given = read_json_object(folder / name).get("eos_token_id")
        if given is None:
            continue
        ids = given if isinstance(given, list) else [given]
        if not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
            raise InputError(
                f"{folder / name}: eos_token_id is {as_written(given)}, expected a token id or a list of "
                f"them, whole numbers of 0 or more."
            )
        return tuple(ids)
    raise InputError(
        f"{folder} names no eos_token_id in generation_config.json or config.json: nothing would end a "
        f"response."
    )
