"""Speed, start-up time, memory and publish time of one CPU server, against SGLang's own attention.

    python -m tests.benchmarks.engine_bench [--quick]

Both servers are measured in turn, several times; each line is the best round. Pin it to the cores you mean
(`taskset -c 0,1`). Tokens per second of the scheduler's own CPU time vary less on a busy machine.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.engine.servers import (
    VOCABULARY,
    new_session,
    publish,
    running_server,
    stream,
    write_model,
)

GROUP = 8
ATTENTIONS = ("asyncrl_cpu", "torch_native")


@dataclass(frozen=True)
class Load:
    """Groups of 8 samples of one prompt, `in_flight` of them at a time."""

    name: str
    num_groups: int
    in_flight: int
    lengths: tuple[int, ...]
    """A sample's length is drawn from these."""


LOADS = (
    Load("128 running x 32 tokens", 48, 16, (32,)),
    Load("64 running x 500 tokens", 8, 8, (500,)),
    Load("64 running x 10 to 500 tokens", 24, 8, (10, 20, 50, 100, 500)),
)


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    tokens_per_cpu_second: float


def group_body(random_: random.Random, load: Load) -> dict[str, Any]:
    prompt = random_.choices(range(2, VOCABULARY), k=12)
    return {
        "input_ids": [prompt] * GROUP,
        "rid": [uuid.uuid4().hex for _ in range(GROUP)],
        "sampling_params": [
            {"temperature": 1.0, "max_new_tokens": random_.choice(load.lengths), "ignore_eos": True}
            for _ in range(GROUP)
        ],
        "return_logprob": True,
        "cache_salt": "bench-v0",
    }


async def measure(url: str, scheduler: psutil.Process, load: Load) -> Speed:
    random_ = random.Random(0)
    places = asyncio.Semaphore(load.in_flight)
    num_tokens = 0

    async with new_session() as session:

        async def run_group(body: dict[str, Any]) -> None:
            nonlocal num_tokens
            async with places:
                async for event in stream(session, url, body):
                    num_tokens += len(event["output_ids"])

        cpu, start = sum(scheduler.cpu_times()[:2]), time.perf_counter()
        await asyncio.gather(*(run_group(group_body(random_, load)) for _ in range(load.num_groups)))
        seconds = time.perf_counter() - start
        return Speed(num_tokens / seconds, num_tokens / (sum(scheduler.cpu_times()[:2]) - cpu))


async def measure_publish(url: str, folder: Path, num_times: int) -> float:
    """Median seconds of pause, load, checksums and continue with 128 requests running."""
    load = Load("", 16, 16, (1500,))
    seconds = []
    async with new_session() as session:
        started = asyncio.Semaphore(0)

        async def run_group() -> None:
            async for _ in stream(session, url, group_body(random.Random(0), load)):
                started.release()

        tasks = [asyncio.create_task(run_group()) for _ in range(load.in_flight)]
        for _ in range(load.in_flight * GROUP):
            await started.acquire()
        for version in range(1, num_times + 1):
            start = time.perf_counter()
            await publish(session, url, folder, version, has_check=True)
            seconds.append(time.perf_counter() - start)
        async with session.post(f"{url}/abort_request", json={"rid": "", "abort_all": True}) as reply:
            assert reply.status == 200
        await asyncio.gather(*tasks)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round and the first load only")
    quick = parser.parse_args().quick
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engine-bench-")))
        model = write_model(folder / "model", seed=0)
        urls, schedulers = {}, {}
        for attention in ATTENTIONS:
            start = time.perf_counter()
            server = running_server(
                model,
                folder / f"{attention}.log",
                *("--attention-backend", attention),
                max_total_tokens=262144,
                max_running_requests=128,
            )
            url, pid = stack.enter_context(server)
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            urls[attention] = url
            schedulers[attention] = next(p for p in family if "scheduler" in " ".join(p.cmdline()))
            print(f"{attention:13} ready after {time.perf_counter() - start:.1f} s")
        for load in LOADS[:1] if quick else LOADS:
            for attention, speed in measure_in_turn(urls, schedulers, load, 1 if quick else 3).items():
                print(
                    f"{attention:13} {load.name}: {speed.tokens_per_second:.0f} tokens/s, "
                    f"{speed.tokens_per_cpu_second:.0f} per CPU second"
                )
        own = ATTENTIONS[0]
        seconds = asyncio.run(measure_publish(urls[own], model, 3 if quick else 20))
        print(f"{own:13} publish with 128 running: {seconds * 1000:.0f} ms")
        server = schedulers[own].parent()
        memory = sum(p.memory_full_info().pss for p in (server, *server.children(recursive=True)))
        print(f"{own:13} memory of all its processes: {memory / 2**20:.0f} MiB")


def measure_in_turn(
    urls: dict[str, str], schedulers: dict[str, psutil.Process], load: Load, num_rounds: int
) -> dict[str, Speed]:
    """The best round of each; the first one, which warms up, does not count."""
    rounds = [
        {name: asyncio.run(measure(url, schedulers[name], load)) for name, url in urls.items()}
        for _ in range(num_rounds + 1)
    ]
    return {name: max((r[name] for r in rounds[1:]), key=lambda s: s.tokens_per_second) for name in urls}


if __name__ == "__main__":
    main()
