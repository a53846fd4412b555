"""The ends of turns in the chats of each family: those that SFT learns are those that end a response."""

from pathlib import Path
from typing import Any

import pytest
from fakes.chat_codec import END, make_chat_codec
from families.known import TINY, tiny
from families.properties import of_each_family

from asyncrl.errors import InputError
from asyncrl.model.learned_turns import stretches, turn_ends
from asyncrl.model.tokenizer import TextCodec
from asyncrl.tasks.demonstration import of_messages, of_response
from asyncrl.turns.dialogue import Dialogue

TEMPLATES = Path(__file__).parent / "chat_templates"
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "It is 5."},
    {"role": "user", "content": "+4?"},
    {"role": "assistant", "content": "9"},
]
OPENINGS = {"glm4_5": "\n<think></think>\n", "mistral": " ", "deepseek_v2": " "}
OPENINGS["gpt_oss"] = "<|channel|>final<|message|>"
"""Text that a template writes in front of what the assistant said, behind the header that asks for it."""


def codec_of(folder: Path, architecture: str) -> TextCodec:
    chat = tiny(architecture).chat
    named = {"bos_token": chat.bos_token, "eos_token": chat.eos_token}
    texts = (*chat.stops, chat.end, chat.last_end, chat.in_history, *chat.others, *named.values())
    return make_chat_codec(
        folder,
        template=TEMPLATES / f"{chat.template}.jinja",
        added=[text for text in dict.fromkeys(texts) if text not in (None, END)],
        stops=chat.stops,
        **named,
    )


@of_each_family("chat")
def test_turns_end_as_the_published_template_ends_them(architecture: str, tmp_path: Path) -> None:
    chat, codec = tiny(architecture).chat, codec_of(tmp_path, architecture)
    last_end = chat.last_end or chat.end
    assert (turn_ends(codec).last, turn_ends(codec).in_history) == (last_end, chat.in_history)
    # All that may end a response, and among them what SFT teaches to end one with.
    assert [codec.exact_text([token]) for token in codec.stop_token_ids] == list(chat.stops)
    assert {chat.end, last_end} <= set(chat.stops)

    opening = OPENINGS.get(chat.template, "")
    turns = [f"{opening}It is 5.{chat.end}", f"{opening}9{last_end}"]
    if chat.in_history is None:
        assert learned(codec, last_alone=False) == turns
        # Each is asked for in front of it.
        first, *_ = stretches(codec, CONVERSATION, last_alone=False)
        assert codec.template is not None and first.text == codec.template.render_all(CONVERSATION[:1])
    else:
        # The end of a turn that others follow is not the one that the model is asked to write.
        with pytest.raises(InputError, match="Set sft.loss_on to response, or make a row of each turn"):
            learned(codec, last_alone=False)
    assert learned(codec, last_alone=True) == turns[1:]

    answer = of_response(codec, CONVERSATION[:1], "It is 5.")
    prompt, response = (part.tokens.tolist() for part in answer.parts)
    assert prompt == list(codec.render_prompt(CONVERSATION[:1])[1])
    assert codec.exact_text(response) == f"It is 5.{last_end}" and codec.decode(response) == "It is 5."


def learned(codec: TextCodec, *, last_alone: bool) -> list[str]:
    row = of_messages(codec, CONVERSATION, last_alone=last_alone)
    return [codec.exact_text(part.tokens.tolist()) for part in row.parts if part.is_learned]


@pytest.mark.parametrize("architecture", TINY)
def test_an_answer_follows_a_turn_with_one_header_whichever_token_ended_it(
    architecture: str, tmp_path: Path
) -> None:
    chat, codec = tiny(architecture).chat, codec_of(tmp_path, architecture)
    dialogue = Dialogue(codec, max_observed_tokens=1000)
    assert codec.template is not None
    whole = codec.template.render_all(CONVERSATION[:3])
    _, _, behind = whole.rpartition("It is 5.")
    for end in chat.stops:
        turn = codec.encode(f"It is 5.{end}", add_special_tokens=False)
        found = codec.exact_text([*turn, *dialogue.answer(turn, CONVERSATION[2:3])])
        ended = chat.in_history or chat.end
        header = behind.removeprefix(ended) if end == chat.end or not is_header(chat.end) else behind
        assert found == f"It is 5.{end}{header}"


def is_header(end: str) -> bool:
    """Whether what ends a turn begins the next one."""
    return end == "<|user|>"
