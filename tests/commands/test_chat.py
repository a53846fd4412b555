"""A chat: messages that it sends and keeps, its calls of tools and environments, and Ctrl-C."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.agents import CONTEXT, rest_of_turn
from fakes.chat_codec import END, make_chat_codec
from fakes.engine import STOP, FakeEngine
from fakes.episodes import FakeEpisodes
from fakes.fleets import writer_to
from fakes.model_folder import write_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from asyncrl.commands import chat
from asyncrl.commands.chat import Interrupt, remarks, talk
from asyncrl.commands.chat_answers import Answers, AskedRow, Conversation
from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Rollout
from asyncrl.recipe.file import parse_recipe
from asyncrl.recipe.sections.turns import Turns
from asyncrl.records import EnvironmentSpec
from asyncrl.serving.sglang.http import new_session
from asyncrl.system import streams
from asyncrl.turns.calls import call_format
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.episode import EnvironmentFault, Episodes
from asyncrl.turns.pool import EpisodePool

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
    monkeypatch.setattr(chat, "lines", lambda: streams.lines(reading))
    os.write(writing, "a\r\n\nzwölf\nlast".encode())
    os.close(writing)

    async def read() -> list[str]:
        return [line async for line in chat._typed_lines()]

    assert asyncio.run(read()) == ["a", "zwölf", "last"]
    os.close(reading)


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>' + END
ROW = AskedRow([{"role": "user", "content": "Guess."}], EnvironmentSpec("game"), {"answer": 7})


def calls_once(text: str) -> str:
    """Calls a tool for each message of the user's, then says so."""
    return f"Done.{END}" if "<tool_response>" in text.rpartition("<|im_start|>user")[2] else CALL


def guesses(turn: int, text: str) -> Observation | End:
    return End(1.0, detail="found") if turn == 2 else Observation("higher\x1b[2J")


@dataclass
class Chat:
    engine: FakeEngine
    answers: Answers
    said: list[str]
    interrupt: Interrupt
    texts: Callable[[], list[str]]
    """Texts that the model was given, one for each time."""
    talk: Callable[[AsyncIterator[str]], "asyncio.Task[None]"]

    def shown(self) -> str:
        return "".join(self.said)


@contextlib.asynccontextmanager
async def chat_with(
    folder: Path, episodes: Episodes, answer: Callable[[str], str], *, max_turns: int = 4, limit: int = 500
) -> AsyncIterator[Chat]:
    codec = make_chat_codec(folder / "codec")
    async with FakeEngine(num_tokens=10_000) as engine, new_session() as session:
        engine.version, engine.answers = "0", lambda prefix: rest_of_turn(codec, prefix, answer)
        conversations = Conversations(
            codec,
            Dialogue(codec, max_observed_tokens=400),
            episodes,
            Turns(max_turns=max_turns, max_tool_seconds=60.0, num_fault_retries=0),
            call_format("hermes", codec, ()),
        )
        said: list[str] = []
        conversation = Conversation(codec, context_tokens=CONTEXT, max_new_tokens=limit, keeps_tokens=True)
        answers = Answers(writer_to(engine, session, codec, said.append), conversation, conversations)
        interrupt = Interrupt()
        yield Chat(
            engine,
            answers,
            said,
            interrupt,
            lambda: [codec.exact_text(body["input_ids"][0]) for body in engine.bodies],
            lambda lines: asyncio.create_task(talk(answers, lines, interrupt, read_row=read_row)),
        )


def read_row(number: int) -> AskedRow:
    if number != 1:
        raise InputError(f"--row is {number}, but data.heldout has 1 rows.")
    return ROW


async def test_a_call_is_made_and_shown_and_the_model_continues_with_its_own_tokens(tmp_path: Path) -> None:
    episodes = FakeEpisodes(guesses)
    async with chat_with(tmp_path, episodes, calls_once) as chat:
        await chat.talk(typed("Look.", "Again."))
        first = f'{CALL.removesuffix(END)}\n| look {{"at": "it"}}\n|   look was called\nDone.\n'
        assert chat.shown() == first * 2
        texts = chat.texts()
        assert len(texts) == 4 and all(later.startswith(text) for text, later in pairwise(texts))
        assert texts[1].startswith(texts[0] + CALL) and texts[1].count("look was called") == 1
        assert "Done." + END in texts[2] and texts[3].count("look was called") == 2
        # The tools keep their state from message to message, and end with the chat.
        (episode,) = episodes.opened
        assert len(episode.calls) == 2 and episode.is_closed


async def test_new_begins_another_conversation_with_other_tools(tmp_path: Path) -> None:
    episodes = FakeEpisodes(guesses)
    async with chat_with(tmp_path, episodes, calls_once) as chat:
        await chat.talk(typed("Look.", "/new", "Again."))
        assert chat.texts()[2].count("<|im_start|>user") == 1
        assert len(episodes.opened) == 2 and all(episode.is_closed for episode in episodes.opened)


async def test_a_row_is_answered_by_its_environment_up_to_the_verdict(tmp_path: Path) -> None:
    episodes = FakeEpisodes(guesses)
    async with chat_with(tmp_path, episodes, lambda text: f"Seven.{END}") as chat:
        await chat.talk(typed("/row 1", "/row 2", "/row x", "Hello."))
        (episode, later) = episodes.opened if len(episodes.opened) == 2 else (*episodes.opened, None)
        assert episode.row == {"answer": 7} and episode.texts == ["Seven."] * 3 and later is None
        shown = chat.shown()
        assert "Guess." in shown and shown.count("|   higher\\x1b[2J\n") == 2
        assert "(the verdict is correct, score 1: found)" in shown
        assert "(--row is 2, but data.heldout has 1 rows.)" in shown
        assert "('/row x': expected a number of a row, counted from 1, such as /row 1.)" in shown
        # A message after it begins another conversation.
        assert chat.texts()[-1].count("<|im_start|>user") == 1


async def test_the_turns_of_a_message_are_bounded(tmp_path: Path) -> None:
    episodes = FakeEpisodes(guesses)
    async with chat_with(tmp_path, episodes, lambda text: CALL, max_turns=2) as chat:
        await chat.talk(typed("Look.", "Again."))
        assert chat.shown().count("(turns.max_turns is 2: these calls are not made)") == 2
        assert len(episodes.opened[0].calls) == 2 and len(chat.engine.bodies) == 4


async def test_a_fault_of_a_tool_is_said_and_the_chat_continues(tmp_path: Path) -> None:
    class Failing:
        async def open(self, environment: EnvironmentSpec | None) -> None:
            raise EnvironmentFault("no process can start")

    async with chat_with(tmp_path, Failing(), calls_once) as chat:  # type: ignore[arg-type]
        await chat.talk(typed("Look.", "Again."))
        assert chat.shown().count("(the verdict is fault: environment: no process can start)") == 2


async def test_ctrl_c_during_a_tool_ends_the_answer_and_the_chat_continues(tmp_path: Path) -> None:
    episodes = FakeEpisodes(guesses)
    async with chat_with(tmp_path, episodes, calls_once) as chat:

        async def lines() -> AsyncIterator[str]:
            yield "First."
            episodes.may_answer.clear()
            yield "Look."
            episodes.may_answer.set()
            yield "Again."

        work = chat.talk(lines())
        while sum(len(episode.calls) for episode in episodes.opened) < 2:
            await asyncio.sleep(0)
        chat.interrupt()
        await work
        assert episodes.opened[0].is_closed
        words = (
            "(stopped: the conversation is as it was before this message; the tools have lost their state)"
        )
        assert chat.shown().count(words) == 1 and chat.shown().endswith("Done.\n")
        last = chat.texts()[-1]
        assert "First." in last and "Again." in last and "Look." not in last


async def test_ctrl_c_while_the_model_writes_ends_its_request(tmp_path: Path) -> None:
    async with chat_with(tmp_path, FakeEpisodes(guesses), lambda text: f"No end{END}") as chat:
        chat.engine.hold()
        work = chat.talk(typed("Write."))
        while chat.engine.num_running == 0:
            await asyncio.sleep(0)
        chat.interrupt()
        await work
        assert chat.engine.aborted == {"chat-00000001-00-0000000001"} and "(stopped: " in chat.shown()


async def test_ctrl_c_between_messages_ends_the_chat(tmp_path: Path) -> None:
    async with chat_with(tmp_path, FakeEpisodes(guesses), calls_once) as chat:

        async def silence() -> AsyncIterator[str]:
            chat.interrupt()
            await asyncio.Event().wait()
            yield ""

        async def chatted() -> None:
            chat.interrupt = Interrupt()
            await talk(chat.answers, silence(), chat.interrupt, read_row=read_row)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(chatted())


async def test_a_tool_that_is_interrupted_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, pathlib, time\n\n\n"
        "def look(at: str) -> str:\n"
        '    """Looks.\n\n    Args:\n        at: Where.\n    """\n'
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
    )
    async with (
        EpisodePool(tools=["./own.py:look"], folder=tmp_path, timeout_seconds=1000.0) as pool,
        chat_with(tmp_path, pool, calls_once) as chat,
    ):
        work = chat.talk(typed("Look."))
        while not (tmp_path / "pid").exists() or not (pid := (tmp_path / "pid").read_text()):
            await asyncio.sleep(0.01)
        chat.interrupt()
        await work
        assert not psutil.pid_exists(int(pid)), json.dumps(chat.said)


def test_what_answers_otherwise_than_in_the_run_is_said() -> None:
    raw = {"name": "t", "model": {"path": "m"}, "data": {"train": "d"}, "evaluation": {"every_steps": 0}}
    assert remarks(parse_recipe(raw, source="t")) == []
    agent = parse_recipe({**raw, "agent": {"command": ["true"]}}, source="t")
    assert remarks(agent) == [
        "the recipe's agent is not started: you talk to the model alone, without its program"
    ]
    turns = {"tools": ["calculator"], "environment": "./game.py:Game"}
    calls, environment = remarks(parse_recipe({**raw, "turns": turns}, source="t"))
    assert calls == "calls of calculator are made and shown" and "/row N" in environment
