"""Queue and controller overhead with 10,000 trajectories in flight: python tests/benchmarks/queue_bench.py

Real generator, queue and journal (SQLite on disk); servers whose streams are already there, so that what is
measured is ours: parsing, version tags, appending, journaling, admission, takes. Prints milliseconds per
event and per take and bytes per trajectory. --quick runs a tenth.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fakes.process_owner import FakeProcesses

from asyncrl.journal.writer import Journal
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.records import Batch, SamplingParams, Score, Segment, Task, Trajectory, VerifierSpec
from asyncrl.replay.group import Group, sequences_of, trajectory_id
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.limits import Limits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.fleet_settings import FleetSettings

SAMPLES = 8
GROUPS_PER_BATCH = 16
CHUNKS = 8
CHUNK_TOKENS = 16
STOP = 1


class ReadySession:
    """Answers /generate with whole streams, a chunk of every request in turn."""

    def post(self, url: str, *, json: Any, timeout: Any) -> "ReadySession":
        stream = ReadySession()
        stream.rids = json["rid"]
        return stream

    rids: list[str] = []
    status = 200

    async def __aenter__(self) -> "ReadySession":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    @property
    def content(self) -> "ReadySession":
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in range(CHUNKS):
            for rid in self.rids:
                yield event(rid, chunk)
            # The other streams get their turn, as if this one waited for the network.
            await asyncio.sleep(0)
        yield b"data: [DONE]\n"


def event(rid: str, chunk: int) -> bytes:
    """As SGLang 0.5.23 writes it."""
    is_last = chunk == CHUNKS - 1
    end = (chunk + 1) * CHUNK_TOKENS
    tokens = list(range(100, 100 + CHUNK_TOKENS))
    if is_last:
        tokens[-1] = STOP
    meta = {
        "id": rid,
        "finish_reason": {"type": "stop", "matched": STOP} if is_last else None,
        "output_token_logprobs": [[-0.123456, token, None] for token in tokens],
        "weight_versions": [{"version": "0", "start": 0, "end": end}],
        "completion_tokens": end,
    }
    return b"data: " + json.dumps({"output_ids": tokens, "meta_info": meta}).encode() + b"\n"


async def measure(num_trajectories: int, folder: Path) -> dict[str, float]:
    num_groups = num_trajectories // SAMPLES
    waits = Waits()
    journal = Journal(folder / "journal.sqlite")
    settings = QueueSettings(
        groups_per_batch=GROUPS_PER_BATCH,
        samples_per_group=SAMPLES,
        max_staleness=num_groups,
        num_steps=num_groups,
    )
    queue = ReplayQueue(journal, settings, has_signal=lambda group: True, changed=waits.notify)
    queue.announce(0)
    session: Any = ReadySession()
    urls = [f"http://{n}" for n in range(8)]
    fleet_settings = FleetSettings(max_running_requests=num_trajectories)
    fleet = Fleet(urls, fleet_settings, session=session, waits=waits, processes=FakeProcesses())
    fleet.members.serve_fixed(0)
    sampling = SamplingParams(1.0, 4096, (STOP,))
    generator = Generator(queue, fleet, waits, Limits(sampling, 8192), 2, "bench", state=RunPhase(waits))
    task = Task("train:1", "1+1=", tuple(range(100)), "2", VerifierSpec("math"))
    encoding_seconds = time_of_encoding(num_groups)

    groups = [queue.admit(task) for _ in range(num_groups)]
    begin = time.perf_counter()
    await asyncio.gather(*(drain(generator, group) for group in groups))
    await journal.barrier()
    events_seconds = time.perf_counter() - begin - encoding_seconds
    score_all(queue, groups)

    takes = []
    for step in range(num_groups // GROUPS_PER_BATCH):
        begin = time.perf_counter()
        batch = queue.take(step)
        takes.append(time.perf_counter() - begin)
        assert batch is not None and len(batch) == GROUPS_PER_BATCH
        if step == 0:
            begin = time.perf_counter()
            Batch(step, 1.0, [each for group in batch for each in sequences_of(group)])
            batch_seconds = time.perf_counter() - begin
        queue.announce(step + 1)
    journal.close()
    num_events = num_trajectories * CHUNKS
    return {
        "events": num_events,
        "ms per event": 1e3 * events_seconds / num_events,
        "million tokens/s through the queue, journaled": 1e-6 * num_events * CHUNK_TOKENS / events_seconds,
        "ms per take (mean)": 1e3 * statistics.fmean(takes),
        "ms per take (worst)": 1e3 * max(takes),
        "ms to build a batch": 1e3 * batch_seconds,
        "bytes per trajectory, admitted": memory_of(task, 0),
        f"bytes per trajectory, {CHUNKS * CHUNK_TOKENS} tokens": memory_of(task, CHUNKS * CHUNK_TOKENS),
    }


async def drain(generator: Generator, group: Group) -> None:
    async for _ in generator.run(group):
        pass


def time_of_encoding(num_groups: int) -> float:
    """Seconds that the fake servers spend on writing events: not ours."""
    begin = time.perf_counter()
    for _ in range(num_groups // 10 or 1):
        for chunk in range(CHUNKS):
            for sample in range(SAMPLES):
                event(f"bench-00000000-{sample:02d}-0000000000", chunk)
    return (time.perf_counter() - begin) * num_groups / (num_groups // 10 or 1)


def score_all(queue: ReplayQueue, groups: list[Group]) -> None:
    for group in groups:
        for index, trajectory in enumerate(group.trajectories):
            reward = float(index % 2)
            queue.score(group, trajectory, Score("correct", reward, reward, "2", "", 0.0), "2")
        queue.make_ready(group, {t.trajectory_id: 0.5 for t in group.trajectories})


def memory_of(task: Task, num_tokens: int) -> float:
    """Bytes that one trajectory holds in the controller, its group's share included."""
    count = 200
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = []
    for number in range(count):
        trajectories = [Trajectory(trajectory_id(number, s), task.prompt_tokens) for s in range(SAMPLES)]
        for trajectory in trajectories:
            if num_tokens:
                tokens = [1000 + i for i in range(num_tokens)]
                trajectory.segments.append(Segment(0, tokens, [-0.001 * i for i in range(num_tokens)]))
        held.append(Group(number, task, 0, trajectories))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / (count * SAMPLES)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    num_trajectories = 1_000 if parser.parse_args().quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(num_trajectories, Path(folder)))
    print(
        f"{num_trajectories:,} trajectories in flight, {SAMPLES} per group, {GROUPS_PER_BATCH} groups a batch"
    )
    for name, value in found.items():
        print(f"  {name:48s} {value:12,.3f}")
    is_met = found["ms per event"] <= 1.0 and found["ms per take (mean)"] <= 1.0
    print("goal (at most 1 ms per event and per take): " + ("met" if is_met else "NOT met"))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
