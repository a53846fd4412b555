"""The parts of a conversation that supervised training learns, under one chat template or another."""

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

FAMILIES = Path(__file__).parent / "chat_templates"
ENDS = {"llama2": "</s>", "smollm2": "<|im_end|>", "zephyr": "</s>"}
"""Templates of other models than those in tests/families."""
SPECIAL = [
    "<s>",
    "</s>",
    "<｜end▁of▁sentence｜>",
    "<｜Assistant｜>",
]
THINKING = "<think>\n2 + 3\n</think>\n\n5"


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


TWO_TURNS = [said("user", "2+3?"), said("assistant", "It is 5."), said("user", "+4?"), said("assistant", "9")]


def codec_of(folder: Path, family: str) -> Any:
    stops = (ENDS.get(family, END),)
    return make_chat_codec(folder, template=FAMILIES / f"{family}.jinja", added=SPECIAL, stops=stops)


@pytest.mark.parametrize("family", ENDS)
def test_each_turn_is_learned_with_its_end_and_nothing_else_is(tmp_path: Path, family: str) -> None:
    codec = codec_of(tmp_path, family)
    assert turn_ends(codec) == (ENDS[family], ENDS[family], (), None)
    found = stretches(codec, TWO_TURNS, last_alone=False)
    assert codec.template.render_closed(TWO_TURNS).startswith("".join(part.text for part in found))
    learned = [part.text.lstrip(" ") for part in found if part.is_learned]
    assert [text.replace(" </s>", "</s>") for text in learned] == [
        f"It is 5.{ENDS[family]}",
        f"9{ENDS[family]}",
    ]
    # The model begins each turn where it is asked for it.
    assert "".join(p.text for p in found[:3]) == codec.template.render_all(TWO_TURNS[:3])

    row = of_messages(codec, [*TWO_TURNS, said("user", "Thanks.")], last_alone=False)
    assert [part.is_learned for part in row.parts] == [False, True, False, True]
    texts = [codec.exact_text(part.tokens.tolist()) for part in row.parts]
    assert texts == [part.text for part in found]
    # The same tokens as of the whole text: here, as usual, no token spans two parts.
    whole = codec.encode("".join(texts), add_special_tokens=False)
    assert [token for part in row.parts for token in part.tokens] == list(whole)

    last = of_messages(codec, TWO_TURNS, last_alone=True)
    assert [part.is_learned for part in last.parts] == [False, True]
    assert last.parts[1].tokens == row.parts[3].tokens
    assert last.cut(last.num_tokens() - 1).num_tokens() == last.num_tokens() - 1
    assert last.cut(len(last.parts[0].tokens)) is None


def test_a_template_that_writes_a_turn_otherwise_in_the_whole_conversation_is_refused(tmp_path: Path) -> None:
    qwen = codec_of(tmp_path / "qwen3", "qwen3")
    thought = [said("user", "2+3?"), said("assistant", THINKING)]
    alone = of_messages(qwen, thought, last_alone=False)
    assert qwen.exact_text(alone.parts[1].tokens.tolist()) == f"{THINKING}<|im_end|>"
    with pytest.raises(InputError, match=r"does not write message 2, the assistant's, as it is: its text"):
        of_messages(qwen, [*thought, *TWO_TURNS[2:]], last_alone=False)
    assert of_messages(qwen, [*thought, *TWO_TURNS[2:]], last_alone=True).parts[-1].is_learned
    # Asked for a turn it opens a thinking that the conversation does not have.
    with pytest.raises(InputError, match=r"before message 2 otherwise in the whole conversation"):
        of_messages(codec_of(tmp_path / "r1", "deepseek_r1"), TWO_TURNS, last_alone=False)
    with pytest.raises(InputError, match=r"not whole before the turn ends"):
        of_messages(qwen, [said("user", "a"), said("assistant", "b<|im_end|>c")], last_alone=True)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([said("user", "2+3?")], "no message is the assistant's answer to something: the roles are user"),
        ([said("assistant", "Hello.")], "no message is the assistant's answer"),
        ([said("user", "2+3?"), said("assistant", " ")], "message 2, the assistant's, is empty"),
    ],
)
def test_a_conversation_with_nothing_to_learn_is_refused(
    tmp_path: Path, messages: list[dict[str, Any]], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        of_messages(codec_of(tmp_path, "qwen2_5"), messages, last_alone=False)


def test_a_response_follows_the_prompt_that_the_model_is_asked_and_ends_once(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, "qwen2_5")
    chat = of_response(codec, [said("user", "2+3?")], "5")
    assert chat == of_messages(codec, [said("user", "2+3?"), said("assistant", "5")], last_alone=True)
    plain = of_response(codec, "2+3=", "5")
    assert [codec.exact_text(part.tokens.tolist()) for part in plain.parts] == ["2+3=", "5<|im_end|>"]
    assert of_response(codec, "2+3=", "5<|im_end|>") == plain
    with pytest.raises(InputError, match="\"response\" is ' ': there is nothing to learn"):
        of_response(codec, "2+3=", " ")


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


def family_codec(folder: Path, architecture: str) -> TextCodec:
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
    chat, codec = tiny(architecture).chat, family_codec(tmp_path, architecture)
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
    chat, codec = tiny(architecture).chat, family_codec(tmp_path, architecture)
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
