"""A row that supervised training learns, as tokens: which of them are learned, and which are context.

Each stretch of text is tokenized by itself, as at inference, where the model begins behind the tokens of its
prompt: no token is half context and half learned.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.data.prompts import Prompt
from asyncrl.errors import InputError
from asyncrl.model.learned_turns import stretches, turn_ends
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Observed, ScoredSequence, Segment
from asyncrl.system.words import as_written


@dataclass(frozen=True, slots=True)
class Part:
    tokens: "array[int]"
    is_learned: bool


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Parts in order: the first one is context, the last one learned; neighbors differ."""

    parts: tuple[Part, ...]

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        return tuple(self.parts[0].tokens)

    def num_tokens(self) -> int:
        return sum(len(part.tokens) for part in self.parts)

    def tokens(self) -> bytes:
        """All of them; equal for equal conversations."""
        return b"".join(part.tokens.tobytes() for part in self.parts)

    def lines(self) -> "tuple[Demonstration, ...]":
        """The conversations of a row."""
        return (self,)

    def cut(self, num_tokens: int) -> "Demonstration | None":
        """Its first tokens up to the last learned one; None where none of them is learned."""
        kept: list[Part] = []
        for part in self.parts:
            kept.append(Part(part.tokens[:num_tokens], part.is_learned))
            num_tokens -= len(kept[-1].tokens)
            if num_tokens <= 0:
                break
        while kept and not (kept[-1].is_learned and kept[-1].tokens):
            kept.pop()
        return Demonstration(tuple(kept)) if kept else None

    def segments(self, version: int) -> list[Segment | Observed]:
        """All that follows the prompt, as a trajectory has it. No policy sampled it: log-probs are 0."""
        return [
            Segment(version, part.tokens.tolist(), [0.0] * len(part.tokens))
            if part.is_learned
            else Observed(part.tokens.tolist())
            for part in self.parts[1:]
        ]

    def sequence(self, name: str) -> ScoredSequence:
        """The whole of it, for the trainer."""
        response: list[int] = []
        observed: list[tuple[int, int]] = []
        for part in self.parts[1:]:
            if not part.is_learned:
                observed.append((len(response), len(response) + len(part.tokens)))
            response += part.tokens.tolist()
        count = sum(len(part.tokens) for part in self.parts if part.is_learned)
        return ScoredSequence(
            name,
            self.parts[0].tokens.tolist(),
            response,
            [0.0] * count,
            [0] * count,
            [False] * count,
            1.0,
            0.0,
            observed=observed,
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses to one prompt."""

    chosen: Demonstration
    rejected: Demonstration

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        return self.chosen.prompt_tokens

    def lines(self) -> tuple[Demonstration, ...]:
        return (self.chosen, self.rejected)

    def num_tokens(self) -> int:
        """As they are packed, if they have the prompt alone in common."""
        prompt = len(self.prompt_tokens)
        return self.chosen.num_tokens() + self.rejected.num_tokens() - prompt


def pair_of(chosen: Demonstration, rejected: Demonstration) -> Pair:
    """Raises InputError for equal sides, and for two prompts."""
    if chosen.parts[0] != rejected.parts[0]:
        raise InputError(
            "chosen and rejected answer different prompts: all before the response must be equal"
        )
    if chosen == rejected:
        raise InputError("chosen and rejected are equal: neither is preferred")
    return Pair(chosen, rejected)


def of_messages(codec: TextCodec, messages: Sequence[dict[str, Any]], *, last_alone: bool) -> Demonstration:
    """Raises InputError."""
    found: list[Part] = []
    texts = stretches(codec, messages, last_alone=last_alone)
    for place, (text, is_learned) in enumerate(texts):
        # The template wrote the special tokens that open a conversation.
        tokens = codec.encode(text, add_special_tokens=False) if place == 0 else codec.encode_inside(text)
        _append(found, tokens, is_learned)
    ends = turn_ends(codec)
    if not ends.is_last_written:
        end = codec.stop_token_ids[:1] if ends.last is None else codec.encode_inside(ends.last)
        _append(found, end, True)
    return _whole(found)


def of_response(codec: TextCodec, prompt: Prompt, response: str, *, name: str = "response") -> Demonstration:
    """The response behind its prompt, as the model is asked it, and the token that ends it. `name` is its
    column's. Raises InputError."""
    if not response.strip():
        raise InputError(f'"{name}" is {response!r}: there is nothing to learn')
    _, tokens = codec.render_prompt(prompt)
    end = None if isinstance(prompt, str) else turn_ends(codec).last
    learned = codec.encode_inside(response + (end or ""))
    if end is None and learned[-1:] and learned[-1] not in codec.stop_token_ids:
        learned += codec.stop_token_ids[:1]
    found: list[Part] = []
    _append(found, tokens, False)
    _append(found, learned, True)
    return _whole(found)


def of_tokens(prompt: Any, response: Any, are_sampled: Any, *, name: str = "response") -> Demonstration:
    """Tokens as a model wrote them; `are_sampled` says of each token of the response whether a policy sampled
    it, so that it is learned (None: of all). `name` is that of the columns. Raises InputError."""
    ids = _ids(f"{name}_tokens", response)
    marks = [True] * len(ids) if are_sampled is None else are_sampled
    is_list = isinstance(marks, Sequence) and not isinstance(marks, str) and len(marks) == len(ids)
    if not is_list or not all(isinstance(mark, bool) for mark in marks):
        raise InputError(
            f'"{name}_sampled" is {as_written(marks)[:80]}, expected true or false for each of '
            f"{len(ids)} tokens"
        )
    found: list[Part] = []
    _append(found, _ids("prompt_tokens", prompt), False)
    for token, mark in zip(ids, marks, strict=True):
        _append(found, [token], mark)
    return _whole(found)


def _ids(name: str, value: Any) -> list[int]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and bool(value)
    if is_list and all(isinstance(token, int) and token >= 0 for token in value):
        return list(value)
    raise InputError(f'"{name}" is {as_written(value)[:80]}, expected a list of token ids')


def _append(parts: list[Part], tokens: Sequence[int], is_learned: bool) -> None:
    """Joins a part to the last one where both are alike."""
    if not tokens:
        return
    if parts and parts[-1].is_learned == is_learned:
        parts[-1].tokens.extend(tokens)
    else:
        parts.append(Part(array("i", tokens), is_learned))


def _whole(parts: list[Part]) -> Demonstration:
    if not parts or parts[0].is_learned:
        raise InputError("nothing comes before what is learned: the first token has nothing to follow")
    if not parts[-1].is_learned:
        parts.pop()
    if not parts or len(parts) < 2:
        raise InputError("the row has no token that is learned")
    return Demonstration(tuple(parts))


def check_vocabulary(demonstration: Demonstration, vocab_size: int) -> None:
    """Raises InputError for an id that the model does not have."""
    largest = max(max(part.tokens) for part in demonstration.parts)
    if largest >= vocab_size:
        raise InputError(f"the token id {largest} is beyond the model's vocabulary of {vocab_size}")
