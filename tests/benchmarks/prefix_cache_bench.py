"""Prefix cache across turns with publishes in between, by the salt of a request, on a real SGLang server.

    python tests/benchmarks/prefix_cache_bench.py [--conversations N] [--turns N]

`rollout.interrupt: continue` keeps the salt of the version that began a trajectory, abort and retract take
that of the current one. Prints the share of the tokens of later turns' prompts that the cache had, and the
time of a turn, side by side on one server: conversations of both kinds take turns."""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.engine.servers import VOCABULARY, new_session, publish, running_server, stream, write_model

SALTS = {"continue": "its first version's", "abort, retract": "the current version's"}
PROMPT, OBSERVED, SAMPLED = 256, 32, 32
"""Tokens of a prompt, of an observation, and of a turn."""


@dataclass
class Found:
    """Prompt tokens of the second and later turns."""

    asked: int = 0
    cached: int = 0
    seconds: list[float] = field(default_factory=list)


async def turn(
    session: aiohttp.ClientSession, url: str, tokens: list[int], salt: str, found: Found | None
) -> None:
    """Extends `tokens` by what the model says."""
    sampling = {"temperature": 1.0, "max_new_tokens": SAMPLED, "ignore_eos": True}
    body = {"input_ids": tokens, "sampling_params": sampling, "cache_salt": salt}
    began, said, cached = time.perf_counter(), [], 0
    async for event in stream(session, url, body):
        said += event["output_ids"]
        cached = event["meta_info"]["cached_tokens"]
    if found is not None:
        found.asked += len(tokens)
        found.cached += cached
        found.seconds.append(time.perf_counter() - began)
    tokens += said[-SAMPLED:]


async def measure(url: str, folder: Path, num_conversations: int, num_turns: int, every: int) -> None:
    """A publish after `every` turns of all conversations; 0: none."""
    random_, version = random.Random(every), 0
    found = {name: Found() for name in SALTS}
    tokens = {
        (name, i): random_.choices(range(2, VOCABULARY), k=PROMPT)
        for name in SALTS
        for i in range(num_conversations)
    }
    async with new_session() as session:
        for number in range(num_turns):
            if every and number and number % every == 0:
                version += 1
                await publish(session, url, folder, version)
            for name in SALTS:
                salt = f"{every}-{name}-{0 if name == 'continue' else version}"
                counted = found[name] if number else None
                await asyncio.gather(
                    *(turn(session, url, tokens[name, i], salt, counted) for i in range(num_conversations))
                )
            for each in tokens.values():
                each += random_.choices(range(2, VOCABULARY), k=OBSERVED)
    for name, salt in SALTS.items():
        each = found[name]
        print(
            f"publish {f'after every {every} turns' if every else 'never'}: {name} (salt: {salt}): "
            f"{100 * each.cached / each.asked:.0f}% of {each.asked} prompt tokens from the cache, a turn "
            f"takes {1e3 * statistics.median(each.seconds):.0f} ms in the median"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "first", seed=0)
        second = write_model(folder / "second", seed=1)
        with running_server(folder / "first", folder / "log", max_running_requests=64) as (url, _):
            for every in (0, 4, 1):
                asyncio.run(measure(url, second, given.conversations, given.turns, every))


if __name__ == "__main__":
    main()
