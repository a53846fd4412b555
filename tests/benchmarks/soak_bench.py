"""The controller under thousands of long streams: soak_bench.py [--streams 4096 --tokens 16384]

A whole controller (queue, journal on disk, verifiers, service) with rollout servers that only speak SGLang's
protocol over real HTTP, and a trainer that takes, publishes and commits; both in another process, so that the
CPU time is the controller's. Responses end between half of --tokens and all of them. Servers are as fast as
they are read, or --rate tokens per second and stream: with a rate, the CPU share and the delay of the event
loop say whether the controller keeps up. Prints tokens per second of CPU time, memory, bytes of the journal
per token, and what a take waits for once the last group of its batch is ready.
"""

import argparse
import asyncio
import json
import logging
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

# The repository first: tests have a folder of the name of one of its packages.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import aiohttp
from aiohttp import web
from fakes.controllers import make_recipe
from fakes.engine import STOP, FakeEngine
from fakes.model_folder import write_tokenizer
from fakes.notebook import Notebook
from fakes.supervisor import FakeSupervisor
from fakes.trainer import FakeTrainer

from asyncrl.controller.assemble import assemble
from asyncrl.controller.controller import Controller
from asyncrl.controller.inputs import Inputs
from asyncrl.journal.writer import Journal
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.records import Task, VerifierSpec
from asyncrl.replay.group import Group
from asyncrl.serving.sglang.http import new_session
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.wire.messages import TakeReply, TakeRequest

SERVERS, SAMPLES, STEPS = 8, 16, 4
PROMPT_TOKENS = 200
CHUNK_TOKENS = 16
"""Tokens that a server sends at once."""
PROBE_SECONDS = 0.05
"""Between two looks at how late the event loop is."""


class FastEngine(FakeEngine):
    """Writes a chunk of each request of a connection at once, from parts that were encoded before."""

    def __init__(self, *, num_tokens: int, rate: float) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.rate = rate
        self._random = random.Random(0)
        self._chunks = [self._encode() for _ in range(64)]

    def _encode(self) -> tuple[str, str]:
        """Tokens and their log-probs with all digits, as a server sends them."""
        tokens = [self._random.randrange(1000, 150_000) for _ in range(CHUNK_TOKENS)]
        logprobs = [[-self._random.random(), token, None] for token in tokens]
        return json.dumps(tokens), json.dumps(logprobs)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        # A resumed response has what its prefix has less to write.
        written = {rid: 0 for rid in body["rid"]}
        ends = {rid: self._length(ids) for rid, ids in zip(body["rid"], body["input_ids"], strict=True)}
        due = time.monotonic()
        while written:
            lines = [self._event(rid, written, ends[rid]) for rid in list(written)]
            await response.write("".join(lines).encode())
            due += CHUNK_TOKENS / self.rate if self.rate else 0.0
            await asyncio.sleep(max(0.0, due - time.monotonic()) if self.rate else 0.0)
        await response.write(b"data: [DONE]\n\n")
        return response

    def _length(self, ids: list[int]) -> int:
        longest = max(CHUNK_TOKENS, self.num_tokens + PROMPT_TOKENS - len(ids))
        return self._random.randrange(longest // 2, longest + 1) // CHUNK_TOKENS * CHUNK_TOKENS

    def _event(self, rid: str, written: dict[str, int], end: int) -> str:
        tokens, logprobs = self._random.choice(self._chunks)
        written[rid] += CHUNK_TOKENS
        count, reason = written[rid], "null"
        if rid in self.aborted:
            reason = '{"type": "abort"}'
        elif count >= end:
            reason, tokens = f'{{"type": "stop", "matched": {STOP}}}', f"{tokens.rpartition(',')[0]}, {STOP}]"
        if reason != "null":
            del written[rid]
        return (
            f'data: {{"output_ids": {tokens}, "meta_info": {{"id": "{rid}", "finish_reason": {reason}, '
            f'"prompt_tokens": {PROMPT_TOKENS}, "weight_version": "{self.version}", "num_retractions": 0, '
            f'"output_token_logprobs": {logprobs}, "completion_tokens": {count}, '
            f'"weight_versions": [{{"version": "{self.version}", "start": 0, "end": {count}}}]}}}}\n\n'
        )


class TimedTrainer(FakeTrainer):
    """Notes when each take was asked and answered, and the groups of its batch."""

    takes: list[dict[str, Any]]

    async def _take(self, session: aiohttp.ClientSession, request: TakeRequest) -> TakeReply:
        asked = time.monotonic()
        reply = await super()._take(session, request)
        if reply.batch is not None:
            groups = {int(s.sequence_id.partition("-")[0]) for s in reply.batch.sequences}
            self.takes.append({"asked": asked, "given": time.monotonic(), "groups": sorted(groups)})
            self.batches.clear()
        return reply


async def play_the_others(num_tokens: int, rate: float, folder: Path) -> None:
    """The child process: URLs to stdout, the controller's from stdin, then what the trainer saw."""
    async with AsyncExitStack() as stack:
        engines = [FastEngine(num_tokens=num_tokens, rate=rate) for _ in range(SERVERS)]
        for engine in engines:
            await stack.enter_async_context(engine)
        print(json.dumps([engine.url for engine in engines]), flush=True)
        trainer = TimedTrainer((await asyncio.to_thread(sys.stdin.readline)).strip(), folder)
        trainer.takes = []
        await trainer.run()
        print(json.dumps({"takes": trainer.takes, "cpu": time.process_time()}), flush=True)


class Watch:
    """What the controller does meanwhile."""

    def __init__(self, controller: Controller) -> None:
        self.ready: dict[int, float] = {}
        """Group -> when it was ready."""
        self.delays: list[float] = []
        original = controller.queue.make_ready

        def make_ready(group: Group, *others: Any, **named: Any) -> None:
            original(group, *others, **named)
            self.ready[group.group_id] = time.monotonic()

        controller.queue.make_ready = make_ready  # type: ignore[method-assign]

    async def probe(self) -> None:
        """How late the event loop comes to what is due."""
        while True:
            begin = time.monotonic()
            await asyncio.sleep(PROBE_SECONDS)
            self.delays.append(time.monotonic() - begin - PROBE_SECONDS)


def recipe_of(num_streams: int, num_tokens: int) -> Recipe:
    groups = num_streams // SAMPLES
    return make_recipe(
        data={"heldout": None},
        evaluation={"every_steps": 0},
        # All streams run at once: batches in flight are as many as the bound admits.
        rollout={
            "groups_per_batch": max(1, groups // STEPS),
            "samples_per_group": SAMPLES,
            "max_staleness": STEPS - 1,
            "max_new_tokens": num_tokens,
        },
        trainer={"num_steps": STEPS},
        # A machine that is busy with other work must not look like servers that hang.
        serving={
            "max_running_requests": max(SAMPLES, num_streams // SERVERS),
            "request_timeout_seconds": 300,
        },
    )


@asynccontextmanager
async def controller_of(recipe: Recipe, folder: Path, urls: list[str]) -> AsyncIterator[Controller]:
    prompt = tuple(3 + n % 10 for n in range(PROMPT_TOKENS))
    tasks = [Task(f"train:{n}", "1" * PROMPT_TOKENS, prompt, "7", VerifierSpec("exact")) for n in range(1000)]
    codec = TextCodec(write_tokenizer(folder / "m"))
    context = PROMPT_TOKENS + recipe.rollout.max_new_tokens
    inputs = Inputs(recipe, tasks, [], codec, VerifierCache(folder), context)
    journal = Journal(folder / "journal.sqlite")
    async with new_session() as session:
        controller = assemble(
            inputs,
            journal=journal,
            session=session,
            supervisor=FakeSupervisor(),
            observer=Notebook(),
            server_urls=urls,
            run_folder=folder / "run",
        )
        async with controller:
            yield controller
    journal.close()


async def measure(num_streams: int, num_tokens: int, rate: float, folder: Path) -> dict[str, float]:
    arguments = ["--play", str(folder), "--tokens", str(num_tokens), "--rate", str(rate)]
    arguments += ["--chunk", str(CHUNK_TOKENS)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    assert child.stdin is not None and child.stdout is not None
    stdout = child.stdout
    try:
        urls = json.loads(await stdout.readline())
        async with controller_of(recipe_of(num_streams, num_tokens), folder, urls) as controller:
            watch = Watch(controller)
            probe = asyncio.create_task(watch.probe())
            idle_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            begin, cpu = time.monotonic(), time.process_time()
            child.stdin.write(f"{controller.queue_url}\n".encode())
            seen: dict[str, Any] = {}

            async def train() -> None:
                seen.update(json.loads(await stdout.readline()))

            await controller.run(train)
            seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
            probe.cancel()
            counters = controller.queue.counters
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    tokens = counters["tokens_generated"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    journal_bytes = sum(path.stat().st_size for path in folder.glob("journal.sqlite*"))
    waits = [t["given"] - max(t["asked"], *(watch.ready[g] for g in t["groups"])) for t in seen["takes"]]
    return {
        "million tokens": tokens / 1e6,
        "seconds": seconds,
        "tokens/s": tokens / seconds,
        "controller: CPU seconds": cpu,
        "controller: share of one core": cpu / seconds,
        "controller: tokens per CPU second": tokens / cpu,
        "controller: memory before, MiB": idle_bytes / 2**20,
        "controller: memory at its peak, MiB": peak / 2**20,
        "controller: delay of the event loop, median ms": 1e3 * statistics.median(watch.delays),
        "controller: the same, worst of 100": 1e3 * statistics.quantiles(watch.delays, n=100)[-1],
        "journal: MiB": journal_bytes / 2**20,
        "journal: bytes per token": journal_bytes / tokens,
        "take: tokens of a batch, millions": tokens / STEPS / 1e6,
        "take: seconds from the last ready group to the batch, median": statistics.median(waits),
        "take: the same, longest": max(waits),
        "servers and trainer: CPU seconds": seen["cpu"],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=512, help="at once")
    parser.add_argument("--tokens", type=int, default=1024, help="longest response")
    parser.add_argument("--rate", type=float, default=0.0, help="tokens per second and stream; 0: no limit")
    parser.add_argument("--chunk", type=int, default=16, help="as rollout.stream_interval_tokens has it")
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    global CHUNK_TOKENS
    CHUNK_TOKENS = chosen.chunk
    logging.disable(logging.WARNING)
    if chosen.play is not None:
        asyncio.run(play_the_others(chosen.tokens, chosen.rate, chosen.play))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(chosen.streams, chosen.tokens, chosen.rate, Path(folder)))
    rate = f"{chosen.rate:g} tokens/s each" if chosen.rate else "as fast as they are read"
    print(f"{chosen.streams:,} streams of {chosen.tokens:,} tokens on {SERVERS} servers, {rate}")
    for name, value in found.items():
        print(f"  {name:62s} {value:14,.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
