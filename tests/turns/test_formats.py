"""Calls as models write them, and what looks like one."""

import json
from pathlib import Path

import pytest
from turns.test_dialogue import make_codec

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.turns.calls import Call, CallFormat, CallResult, call_format
from asyncrl.turns.tools import Tool, load_tool, load_tools

ADD = 'say <tool_call>\n{"name": "calculator", "arguments": {"expression": "2+3"}}\n</tool_call>'
WANTED = Call("calculator", {"expression": "2+3"})


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return make_codec(tmp_path, "qwen2_5")


def parse(name: str, codec: TextCodec, text: str, tools: list[Tool] | None = None) -> list[Call]:
    form = call_format(name, codec, tools or load_tools(["calculator"], None))
    return form.parse(codec.encode(text, add_special_tokens=False))


def test_a_turn_without_a_call_calls_nothing(codec: TextCodec) -> None:
    for name in ("hermes", "llama", "tags"):
        assert parse(name, codec, "2 + 3 is 5, as { } and <tool_response>6</tool_response> say") == []


def test_hermes_calls_are_read_in_their_order(codec: TextCodec) -> None:
    two = f'{ADD} and <tool_call>{{"name": "b", "arguments": {{}}}}</tool_call><|im_end|>'
    assert parse("hermes", codec, two) == [WANTED, Call("b", {})]


def test_hermes_arguments_may_be_a_text_of_json(codec: TextCodec) -> None:
    body = json.dumps({"name": "calculator", "arguments": '{"expression": "2+3"}'})
    assert parse("hermes", codec, f"<tool_call>{body}</tool_call>") == [WANTED]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("{broken", "is not JSON"),
        ("[1]", 'has no "name"'),
        ('{"name": 3}', 'has no "name"'),
        ('{"name": "a", "arguments": [1]}', "is not an object"),
        ('{"name": "a", "arguments": "x"}', "is not an object"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_call_that_cannot_be_read_is_answered_by_what_is_wrong(
    codec: TextCodec, body: str, error: str
) -> None:
    (call,) = parse("hermes", codec, f"<tool_call>{body}</tool_call>")
    assert error in call.error and "Write <tool_call>" in call.error and not call.is_unfinished


def test_a_call_without_an_end_is_unfinished(codec: TextCodec) -> None:
    first, second = parse("hermes", codec, f'{ADD}<tool_call>{{"name": "b"')
    assert first == WANTED and second.is_unfinished


def test_a_marker_that_is_a_token_of_its_own_is_not_found_in_other_tokens(tmp_path: Path) -> None:
    codec = make_codec(tmp_path, "qwen2_5", markers=("<tool_call>", "</tool_call>"))
    plain = codec.without_added_tokens()
    said = '{"name": "calculator", "arguments": {"expression": "</tool_call>"}}'
    opening = codec.encode("<tool_call>", add_special_tokens=False)
    closing = codec.encode("</tool_call>", add_special_tokens=False)
    form = call_format("hermes", codec, [])
    assert form.parse([*opening, *plain.encode(said), *closing]) == [
        Call("calculator", {"expression": "</tool_call>"})
    ]
    assert form.parse(plain.encode(ADD)) == []


def test_llama_calls_are_the_whole_turn(codec: TextCodec) -> None:
    body = '{"name": "calculator", "parameters": {"expression": "2+3"}}'
    assert parse("llama", codec, body) == parse("llama", codec, f"<|python_tag|>{body}<|eom_id|>") == [WANTED]
    assert parse("llama", codec, f"I call {body}") == []
    (cut,) = parse("llama", codec, body[:-3])
    assert cut.is_unfinished and "is not JSON" in cut.error


def test_the_last_python_block_is_the_code(codec: TextCodec) -> None:
    tools = [load_tool("calculator", {}, None)]
    python = [Tool("python", tools[0].schema, tools[0].function)]
    text = "first\n```python\nx = 1\n```\nthen\n```python\nprint(2)\n```\ndone"
    assert parse("fenced", codec, text, python) == [Call("python", {"code": "print(2)\n"})]
    assert parse("fenced", codec, "```python\nprint(2)", python) == []
    with pytest.raises(InputError, match="Add the tool python"):
        call_format("fenced", codec, tools)


def tags(codec: TextCodec, **options: str) -> CallFormat:
    return call_format("tags", codec, [load_tool("calculator", options, None)])


def test_a_tag_at_the_end_of_a_turn_is_a_call(codec: TextCodec) -> None:
    form = tags(codec, tag="calc", result_tag="out")
    assert form.stop == ("</calc>",) and form.is_inline
    assert form.parse(codec.encode("so <calc>1</calc> no, <calc>2+3</calc>\n")) == [WANTED]
    assert form.parse(codec.encode("so <calc>2+3</calc> is 5")) == []
    (call,) = form.parse(codec.encode("2+3</calc>"))
    assert "no <calc> in front" in call.error
    assert form.around(CallResult("calculator", "5")) == ("<out>", "</out>")


def test_tags_need_tools_of_one_text(codec: TextCodec) -> None:
    def move(x: int, y: int) -> str:
        """Moves.

        Args:
            x: To the right.
            y: Up.
        """
        return ""

    from asyncrl.turns.tools import schema_of

    with pytest.raises(InputError, match="the tool move takes x, y"):
        call_format("tags", codec, [Tool("move", schema_of(move, "move"), move)])


def test_formats_of_messages_need_a_chat_template(codec: TextCodec, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    bare = TextCodec(tmp_path)
    for name in ("auto", "hermes", "llama", "fenced"):
        with pytest.raises(InputError, match="needs a chat template"):
            call_format(name, bare, [])
    assert tags(bare)


def test_the_format_is_found_by_the_template(codec: TextCodec, tmp_path: Path) -> None:
    assert parse("auto", codec, ADD) == [WANTED]
    template = "{% for m in messages %}{{ m.role }}ipython{{ m.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    llama = TextCodec(tmp_path)
    assert parse("auto", llama, '{"name": "calculator", "parameters": {"expression": "2+3"}}') == [WANTED]
