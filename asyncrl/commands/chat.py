"""`asyncrl chat RUN`: type a message, see the response of the run's newest checkpoint; Ctrl-D ends.

With turns in the recipe, tools and environments answer the model as in the run, and both are shown.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from asyncrl.commands.chat_answers import Answers, AskedRow, Conversation, writer_on
from asyncrl.commands.pages import say_failure
from asyncrl.commands.parser import number
from asyncrl.commands.prompt import find_row
from asyncrl.controller.inputs import episodes_of, hidden_files
from asyncrl.data.rows import Unanswered
from asyncrl.errors import AsyncrlError, InputError
from asyncrl.launch.engine_only import serve_folder
from asyncrl.launch.evaluated_models import newest_model
from asyncrl.launch.prepare import fetch_model
from asyncrl.loops import end_tasks
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.observe.terminal.table import warn_on_stderr
from asyncrl.recipe import Model, Recipe
from asyncrl.recipe.file import PATH_RULE
from asyncrl.run.folder import read_run_recipe
from asyncrl.system.streams import in_thread, lines
from asyncrl.tasks.openings import Openings
from asyncrl.tasks.task_list import template_of
from asyncrl.turns.kit import conversations_of, read_kit

HELP = (
    "Talk to the newest checkpoint of a run, or to the base model it started from. With a chat template the "
    "conversation continues from message to message, and /new begins another one; without one each line is "
    "continued as it stands. Tools of the recipe answer the model's calls; /row N asks row N of the held-out "
    "data, which its environment then answers. Ctrl-C ends an answer."
)
EXAMPLES = (
    "asyncrl chat runs/r1_zero_arithmetic_cpu",
    "asyncrl chat runs/r1_zero_arithmetic_cpu --base --temperature 0.7",
)
NEW, ROW = "/new", "/row"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--base", action="store_true", help="the base model instead of the newest checkpoint")
    parser.add_argument(
        "--temperature", type=number(least=0), default=0.0, help="0 takes the most likely token"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 at the end of the input, 1 when the server failed. Raises InputError."""
    warn_on_stderr()
    try:
        recipe = read_run_recipe(arguments.run)
        asyncio.run(_chat(recipe, _model_folder(arguments, recipe), arguments))
    except InputError:
        raise
    except AsyncrlError as error:
        return say_failure(error)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print()
    return 0


def _model_folder(arguments: argparse.Namespace, recipe: Recipe) -> Path:
    if not arguments.base:
        newest = newest_model(arguments.run)
        if newest is None:
            raise InputError(f"{arguments.run} has no checkpoint yet. Use --base for the base model.")
        return newest
    folder = model_folder(fetch_model(recipe).model)
    if not folder.is_dir():
        raise InputError(
            f"model.path of {arguments.run} is {recipe.model.path}, which is not a folder. {PATH_RULE}"
        )
    return folder


async def _chat(recipe: Recipe, folder: Path, arguments: argparse.Namespace) -> None:
    # Raises before a server starts.
    kit = read_kit(recipe, folder)
    context_tokens = recipe.model.context_tokens or read_shape(folder).max_positions
    model = Model(path=str(folder), dtype=recipe.model.dtype, context_tokens=recipe.model.context_tokens)
    hidden = hidden_files(recipe, arguments.run)
    async with (
        episodes_of(recipe, hidden) as episodes,
        serve_folder(recipe.model_copy(update={"model": model}), folder) as served,
    ):
        conversations = None if episodes is None else conversations_of(kit, recipe, episodes)
        answers = Answers(
            writer_on(
                *(served.fleet, served.waits, kit.codec, context_tokens),
                temperature=arguments.temperature,
                say=_say,
            ),
            Conversation(
                kit.codec,
                context_tokens=context_tokens,
                max_new_tokens=recipe.rollout.max_new_tokens,
                keeps_tokens=conversations is not None,
            ),
            conversations,
            recipe.turns.max_turn_tokens,
        )
        _say("".join(f"({remark})\n" for remark in remarks(recipe)))
        interrupt, loop = Interrupt(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            await talk(answers, _typed_lines(), interrupt, read_row=partial(_row, recipe))
        finally:
            loop.remove_signal_handler(signal.SIGINT)


class Interrupt:
    """Ctrl-C: ends the answer that is on its way, else the chat. Made in the task of the chat."""

    def __init__(self) -> None:
        self._chat = asyncio.current_task()
        self.answer: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        task = self.answer or self._chat
        if task is not None:
            task.cancel()


async def talk(
    answers: Answers, lines: AsyncIterator[str], interrupt: Interrupt, *, read_row: Callable[[int], AskedRow]
) -> None:
    """Answers `lines` until they end. What cannot be asked is said; the conversation continues without it."""
    say = answers.writer.say
    try:
        async for line in lines:
            work = interrupt.answer = asyncio.create_task(_reply(answers, line, read_row))
            try:
                await asyncio.wait([work])
            finally:
                interrupt.answer = None
                await end_tasks(work)
            if not work.cancelled():
                work.result()
                continue
            lost = await answers.end_tools()
            words = "; the tools have lost their state" if lost else ""
            say(f"\n(stopped: the conversation is as it was before this message{words})\n")
    finally:
        await answers.end_tools()


async def _reply(answers: Answers, line: str, read_row: Callable[[int], AskedRow]) -> None:
    command, _, rest = line.partition(" ")
    try:
        if line == NEW:
            await answers.begin()
        elif command == ROW:
            if not rest.strip().isdecimal():
                raise InputError(f"{line!r}: expected a number of a row, counted from 1, such as {ROW} 1.")
            await answers.play(read_row(int(rest)))
        else:
            await answers.reply(line)
    except InputError as error:
        answers.writer.say(f"({error})\n")


def remarks(recipe: Recipe) -> list[str]:
    """One sentence each on what answers the model here, where it is not the same as in the run."""
    turns = recipe.turns
    if recipe.agent.is_on():
        return ["the recipe's agent is not started: you talk to the model alone, without its program"]
    found = []
    if turns.tools:
        found.append(f"calls of {', '.join(tool.name for tool in turns.tools)} are made and shown")
    if turns.environment is not None:
        name = turns.environment.name
        found.append(f"you answer in place of the environment {name}; {ROW} N asks row N, which it answers")
    return found


def _row(recipe: Recipe, number: int) -> AskedRow:
    """Raises InputError."""
    row, _ = find_row(recipe, number, is_heldout=recipe.data.heldout is not None)
    if isinstance(row, Unanswered):
        raise InputError(row.complaint)
    row = Openings(recipe.verifying.own_files()).opened(row)
    template = template_of(recipe)
    prompt = row.prompt if template is None else template(row.prompt)
    return AskedRow(prompt, row.environment, row.columns or {})


def _say(text: str) -> None:
    print(text, end="", flush=True)


async def _typed_lines() -> AsyncIterator[str]:
    """Lines of standard input that are not empty, with a prompt where a person types them."""
    prompt = "> " if os.isatty(0) else ""
    _say(prompt)
    async for line in in_thread(lines()):
        if line.strip():
            yield line
        _say(prompt)
