"""The parts of a conversation that supervised training learns, under one chat template or another."""

from pathlib import Path
from typing import Any

import pytest
from fakes.chat_codec import END, make_chat_codec

from asyncrl.errors import InputError
from asyncrl.model.learned_turns import stretches, turn_ends
from asyncrl.tasks.demonstration import of_messages, of_response

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
