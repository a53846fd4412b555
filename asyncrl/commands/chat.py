"""`asyncrl chat RUN`: type a message, see the response of the run's newest checkpoint; Ctrl-D ends."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl.commands import standard_input
from asyncrl.errors import AsyncrlError, InputError
from asyncrl.launch.base_model import fetch_model
from asyncrl.launch.engine_only import serve_folder
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.terminal.stderr import warn_on_stderr
from asyncrl.recipe import Model, Recipe
from asyncrl.recipe.file import PATH_RULE
from asyncrl.records import Finish, SamplingParams
from asyncrl.run.folder import RunFolder, read_run_recipe
from asyncrl.serving.sglang import control
from asyncrl.serving.sglang.messages import Prefix, generate_body
from asyncrl.serving.sglang.stream import stream

HELP = (
    "Talk to the newest checkpoint of a run, or to the base model it started from. With a chat template the "
    "conversation continues from message to message, and /new begins another one; without one each line is "
    "continued as it stands."
)
NEW = "/new"
INCOMPLETE = "\ufffd"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--base", action="store_true", help="the base model instead of the newest checkpoint")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the most likely token")


def run(arguments: argparse.Namespace) -> int:
    """0 at the end of the input, 1 when the server failed. Raises InputError."""
    warn_on_stderr()
    try:
        recipe = read_run_recipe(arguments.run)
        if arguments.temperature < 0:
            raise InputError(f"--temperature is {arguments.temperature}, expected 0 or more.")
        asyncio.run(_chat(recipe, _model_folder(arguments, recipe), arguments))
    except InputError:
        raise
    except AsyncrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def _model_folder(arguments: argparse.Namespace, recipe: Recipe) -> Path:
    exported = RunFolder(arguments.run).newest_export()
    if not arguments.base:
        if exported is None:
            raise InputError(
                f"{arguments.run} has no exported checkpoint yet. Use --base for the base model."
            )
        return exported
    folder = model_folder(fetch_model(recipe).model)
    if not folder.is_dir():
        raise InputError(
            f"model.path of {arguments.run} is {recipe.model.path}, which is not a folder. {PATH_RULE}"
        )
    return folder


async def _chat(recipe: Recipe, folder: Path, arguments: argparse.Namespace) -> None:
    conversation = Conversation(
        TextCodec(folder, rollout=recipe.rollout, template_arguments=recipe.chat_template_kwargs()),
        context_tokens=recipe.model.context_tokens or read_shape(folder).max_positions,
        max_new_tokens=recipe.rollout.max_new_tokens,
    )
    model = Model(path=str(folder), dtype=recipe.model.dtype, context_tokens=recipe.model.context_tokens)
    async with serve_folder(recipe.model_copy(update={"model": model}), folder) as served:
        (server,) = served.fleet.members.serving()[:1]
        await talk(
            conversation,
            _typed_lines(),
            session=served.session,
            url=server.url,
            temperature=arguments.temperature,
            say=_say,
        )


class Conversation:
    """The messages so far and what the model reads of them."""

    def __init__(self, codec: TextCodec, *, context_tokens: int, max_new_tokens: int) -> None:
        self.codec = codec
        self.messages: list[dict[str, Any]] = []
        self._context_tokens = context_tokens
        self._max_new_tokens = max_new_tokens
        self._is_raw = not codec.has_chat_template

    def ask(self, text: str) -> tuple[tuple[int, ...], int]:
        """(tokens to continue, most tokens of the answer). Raises InputError, and then forgets `text`."""
        messages = [*self.messages, {"role": "user", "content": text}]
        _, tokens = self.codec.render_prompt(text if self._is_raw else messages)
        if not tokens:
            raise InputError(f"the prompt {text!r} has no tokens.")
        room = self._context_tokens - len(tokens)
        if room <= 0:
            what = "the line" if self._is_raw or not self.messages else "the conversation"
            raise InputError(
                f"{what} has {len(tokens)} tokens, the model's context {self._context_tokens}: no room is "
                f"left for an answer. Shorten it{f', or begin another with {NEW}' if self.messages else ''}."
            )
        if not self._is_raw:
            self.messages = messages
        return tokens, min(self._max_new_tokens, room)

    def answered(self, text: str) -> None:
        if not self._is_raw:
            self.messages.append({"role": "assistant", "content": text})


async def talk(
    conversation: Conversation,
    lines: AsyncIterator[str],
    *,
    session: aiohttp.ClientSession,
    url: str,
    temperature: float,
    say: Callable[[str], None],
) -> None:
    """Answers `lines` until they end. What cannot be asked is said; the conversation continues without it."""
    codec, number = conversation.codec, 0
    async for line in lines:
        if line == NEW:
            conversation.messages = []
            continue
        try:
            tokens, limit = conversation.ask(line)
        except InputError as error:
            say(f"({error})\n")
            continue
        number += 1
        sampling = SamplingParams(max(temperature, 1e-6), limit, codec.stop_token_ids)
        prefix = Prefix(f"chat-{number:08d}", list(tokens), limit)
        body = generate_body([prefix], sampling, salt="chat", is_greedy=temperature == 0.0)
        answer: list[int] = []
        shown, search = "", codec.stop.search()
        async for chunk in stream(session, url, body, silence_seconds=60.0):
            if search.end is not None:
                continue
            answer += chunk.tokens
            if search.feed(chunk.tokens):
                del answer[search.end :]
                if chunk.end is None:
                    await control.abort(session, url, prefix.request_id)
            text = codec.decode(answer)
            # A character may be made of several tokens.
            if chunk.end is not None or search.end is not None or not text.endswith(INCOMPLETE):
                say(text[len(shown) :])
                shown = text
            if search.end is None and chunk.end is not None and chunk.end.finish() is Finish.LENGTH:
                say(f" (cut at {limit} tokens)")
        say("\n")
        conversation.answered(shown)


def _say(text: str) -> None:
    print(text, end="", flush=True)


async def _typed_lines() -> AsyncIterator[str]:
    """Lines of standard input that are not empty, with a prompt where a person types them."""
    prompt = "> " if os.isatty(standard_input.FILE) else ""
    _say(prompt)
    async for line in standard_input.in_thread(standard_input.lines()):
        if line.strip():
            yield line
        _say(prompt)
