"""What a chat sends and keeps, on a server that answers 77777 to everything."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import STOP, FakeEngine
from fakes.fleets import writer_to
from fakes.model_folder import write_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from asyncrl.commands import chat
from asyncrl.commands.chat import Interrupt, talk
from asyncrl.commands.chat_answers import Answers, AskedRow, Conversation
from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Rollout
from asyncrl.serving.sglang.http import new_session

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def answers(conversation: Conversation, *lines: str, num_tokens: int = 5) -> tuple[str, list[str]]:
    """What was said, and the text that the server was given each time."""
    return asyncio.run(_answers(conversation, *lines, num_tokens=num_tokens))


async def _answers(conversation: Conversation, *lines: str, num_tokens: int) -> tuple[str, list[str]]:
    said: list[str] = []
    async with FakeEngine(num_tokens=num_tokens) as engine, new_session() as session:
        engine.version = "0"
        writer = writer_to(engine, session, conversation.codec, said.append)
        await talk(Answers(writer, conversation), typed(*lines), Interrupt(), read_row=no_row)
    sent = [conversation.codec.decode(body["input_ids"][0]) for body in engine.bodies]
    assert all(body["sampling_params"][0]["temperature"] == 0.0 for body in engine.bodies)
    return "".join(said), sent


async def typed(*lines: str) -> AsyncIterator[str]:
    for line in lines:
        yield line


def no_row(number: int) -> AskedRow:
    raise InputError(f"there is no row {number}")


def make_conversation(folder: Path, *, template: str | None = TEMPLATE, **options: Any) -> Conversation:
    write_tokenizer(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return Conversation(TextCodec(folder), **{"context_tokens": 80, "max_new_tokens": 8, **options})


def test_an_answer_ends_with_the_runs_stop_string_and_the_next_message_finds_it_so(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    codec = TextCodec(tmp_path, rollout=Rollout(stop=["777"]))
    conversation = Conversation(codec, context_tokens=400, max_new_tokens=200)
    said, sent = answers(conversation, "12", "34", num_tokens=1000)
    assert said == "777\n" * 2
    assert sent[1] == "<user>12;<assistant>777;<user>34;<assistant>"


def test_messages_go_through_the_template_and_the_conversation_is_kept(tmp_path: Path) -> None:
    said, sent = answers(make_conversation(tmp_path), "12", "34", "/new", "5")
    assert sent == [
        "<user>12;<assistant>",
        "<user>12;<assistant>7777;<user>34;<assistant>",
        "<user>5;<assistant>",
    ]
    assert said == "7777\n" * 3


def test_without_a_template_each_line_is_continued_as_it_stands(tmp_path: Path) -> None:
    conversation = make_conversation(tmp_path, template=None)
    assert (answers(conversation, "12=", "34="))[1] == ["12=", "34="]


def test_a_long_message_is_refused_and_the_conversation_continues_without_it(tmp_path: Path) -> None:
    conversation = make_conversation(tmp_path)
    said, sent = answers(conversation, "1", "2" * 80, "3")
    assert "(the conversation has 122 tokens, the model's context 80: no room is left" in said
    assert "or begin another with /new.)" in said
    assert sent[1] == "<user>1;<assistant>7777;<user>3;<assistant>"


def test_the_answer_is_cut_where_the_context_ends_and_that_is_said(tmp_path: Path) -> None:
    conversation = make_conversation(tmp_path, context_tokens=23)
    said, _ = answers(conversation, "12", num_tokens=50)
    assert said == "777 (cut at 3 tokens)\n"


def test_a_character_that_the_tokenizer_does_not_know_is_said(tmp_path: Path) -> None:
    conversation = make_conversation(tmp_path, template=None)
    vocabulary = {"<bos>": 0, "<eos>": 1, "1": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    conversation = Conversation(TextCodec(tmp_path), context_tokens=80, max_new_tokens=8)
    said, sent = answers(conversation, "1é", "1")
    assert r"(the tokenizer has no tokens for '1\xe9': WordLevel error: Missing [UNK] token" in said
    assert sent == ["1"]


def test_a_character_of_several_tokens_is_shown_when_it_is_whole(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    vocabulary = {"<unk>": 0, "<0xC3>": 2, "<0xA9>": 3}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    said: list[str] = []
    conversation = Conversation(TextCodec(tmp_path), context_tokens=80, max_new_tokens=8)

    async def chatted() -> None:
        async with FakeEngine(chunk_tokens=1) as engine, new_session() as session:
            engine.version, engine.answers = "0", lambda prefix: [2, 3, 2, 3, STOP]
            writer = writer_to(engine, session, conversation.codec, said.append)
            await talk(Answers(writer, conversation), typed("é"), Interrupt(), read_row=no_row)

    asyncio.run(chatted())
    assert said == ["é", "é", "\n"]


def test_lines_come_from_a_pipe_also_the_last_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(chat.standard_input, "FILE", reading)
    os.write(writing, "a\r\n\nzwölf\nlast".encode())
    os.close(writing)

    async def read() -> list[str]:
        return [line async for line in chat._typed_lines()]

    assert asyncio.run(read()) == ["a", "zwölf", "last"]
    os.close(reading)
