"""`asyncrl chat RUN`: type a prompt, see the response of the run's newest checkpoint; Ctrl-D ends."""

import argparse
import asyncio
import itertools
import logging
import sys
from pathlib import Path

from asyncrl.errors import AsyncrlError, InputError
from asyncrl.launch.engine_only import ServedModel, serve_folder
from asyncrl.launch.run_folder import RunFolder, read_run_recipe
from asyncrl.recipe import Model, Recipe
from asyncrl.rollout.text import TextCodec
from asyncrl.serving import client
from asyncrl.serving.wire import Prefix, generate_body
from asyncrl.types import SamplingParams

HELP = "Talk to the newest checkpoint of a run, or to the base model it started from."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--base", action="store_true", help="the base model instead of the newest checkpoint")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the most likely token")


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        recipe = read_run_recipe(arguments.run)
        folder = Path(recipe.model.path) if arguments.base else RunFolder(arguments.run).newest_export()
        if folder is None:
            raise InputError(
                f"{arguments.run} has no exported checkpoint yet. Use --base for the base model."
            )
        asyncio.run(_chat(recipe, folder, arguments.temperature))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except AsyncrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        print()
    return 0


async def _chat(recipe: Recipe, folder: Path, temperature: float) -> None:
    codec = TextCodec(folder)
    model = Model(path=str(folder), dtype=recipe.model.dtype, context_tokens=recipe.model.context_tokens)
    async with serve_folder(recipe.model_copy(update={"model": model}), folder) as served:
        for number in itertools.count():
            try:
                prompt = await asyncio.to_thread(input, "> ")
            except EOFError:
                return
            if prompt:
                await _respond(served, recipe, codec, prompt, temperature, number)


async def _respond(
    served: ServedModel, recipe: Recipe, codec: TextCodec, prompt: str, temperature: float, number: int
) -> None:
    _, tokens = codec.render_prompt(prompt)
    sampling = SamplingParams(max(temperature, 1e-6), recipe.rollout.max_new_tokens, codec.stop_token_ids)
    prefix = Prefix(f"chat-{number:08d}", list(tokens), recipe.rollout.max_new_tokens)
    body = generate_body([prefix], sampling, salt="chat", is_greedy=temperature == 0.0)
    (server,) = served.fleet.serving()[:1]
    async for chunk in client.stream(served.session, server.url, body, silence_seconds=60.0):
        print(codec.decode(chunk.tokens), end="", flush=True)
    print()
