"""The journal under a full stream: durable tokens per second, and what a step of training pays for it.

    python tests/benchmarks/journal_bench.py [--quick]

Groups of a batch stream at once, as from a server: every trajectory gets a chunk in turn, as one append. A
token is durable behind a barrier. Costs are of the controller's thread (what the event loop cannot do
meanwhile) and of the whole until the disk has it; goals: 1 million durable tokens per second, and at most 1%
of the time in which servers generate those tokens, for a laptop's rate and for a few GPUs'.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.records import correctness_differs, make_score, make_task

from asyncrl.journal.compaction import compact
from asyncrl.journal.writer import Journal
from asyncrl.records import Finish, Segment
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings

GROUPS, SAMPLES = 16, 8
RATES = (5_000, 40_000)
"""Tokens per second that all servers of a run generate: two cores and a 0.6 M model, and a few GPUs."""


def make_queue(folder: Path, num_steps: int) -> ReplayQueue:
    settings = QueueSettings(
        groups_per_batch=GROUPS, samples_per_group=SAMPLES, max_staleness=0, num_steps=num_steps
    )
    return ReplayQueue(Journal(folder / "journal.sqlite"), settings, has_signal=correctness_differs)


def run_step(queue: ReplayQueue, step: int, *, chunk: int, length: int) -> float:
    """One batch from admission to take; seconds of this thread until everything was handed over."""
    begin = time.perf_counter()
    queue.announce(step)
    groups = [queue.admit(make_task(number)) for number in range(GROUPS)]
    tokens, logprobs = list(range(1000, 1000 + chunk)), [-0.1 * n for n in range(chunk)]
    for done in range(0, length, chunk):
        finish = Finish.STOP if done + chunk >= length else None
        for group in groups:
            for trajectory in group.trajectories:
                queue.append(group, trajectory, [Segment(step, list(tokens), list(logprobs))], finish)
    for group in groups:
        for trajectory in group.trajectories:
            queue.score(group, trajectory, make_score(), "text" * length)
        queue.make_ready(group, {t.trajectory_id: 0.5 for t in group.trajectories})
    assert queue.take(step) is not None
    return time.perf_counter() - begin


def bench(chunk: int, length: int, num_rounds: int) -> None:
    """Prints the best of `num_rounds` steps, each durable before the next begins."""
    tokens = GROUPS * SAMPLES * length
    in_thread, durable = [], []
    with tempfile.TemporaryDirectory() as temporary:
        queue = make_queue(Path(temporary), num_rounds)
        for step in range(num_rounds):
            begin = time.perf_counter()
            in_thread.append(run_step(queue, step, chunk=chunk, length=length))
            queue.journal.barrier_blocking()
            durable.append(time.perf_counter() - begin)
        queue.commit(num_rounds, "")
        queue.journal.barrier_blocking()
        sizes = queue.journal.read("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        begin = time.perf_counter()
        queue.journal.write(*compact(0, num_rounds))
        queue.journal.barrier_blocking()
        compaction = (time.perf_counter() - begin) / num_rounds
        queue.journal.close()
    print(
        f"{chunk:5d} {length:7d} {tokens / min(durable) / 1e6:10.2f} M/s "
        f"{tokens / min(in_thread) / 1e6:10.2f} M/s "
        + "".join(f"{min(durable) * rate / tokens:12.2%} " for rate in RATES)
        + f"{sizes[0][0] / tokens / num_rounds:9.1f} B {compaction * 1e3:9.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps: a smoke test, not a measurement")
    num_rounds = 1 if parser.parse_args().quick else 10
    print(f"{GROUPS} groups of {SAMPLES}; share of the time in which servers generate that many tokens")
    shares = [f"at {rate:,d}/s" for rate in RATES]
    header = ("chunk", "length", "durable", "handed over", *shares, "per token", "compact")
    print("{:>5s} {:>7s} {:>14s} {:>14s} {:>12s} {:>12s} {:>11s} {:>12s}".format(*header))
    for chunk, length in ((16, 64), (16, 512), (64, 2048), (256, 4096)):
        bench(chunk, length, num_rounds)


if __name__ == "__main__":
    main()
