"""The controller's cost per token, by part, in CPU seconds: what a shared machine cannot change.

    python tests/benchmarks/controller_bench.py [--rounds 3] [--streams 256 --tokens 2048] [--against TREE]

The controller of soak_bench.py (queue, journal on disk, verifiers, service) under servers that only speak
SGLang's protocol, which with the trainer are another process. Each round runs it once as it is, for the CPU
time of its thread and of the journal's, and once under cProfile on the CPU's clock, which says how that of
its thread is divided; a call into C counts for its caller. --against names another checkout, whose packages
take turns with these; --chunk is rollout.stream_interval_tokens. --alone is parsing
and segments of prepared events. Goal: 10% of a core per 10,000 tokens/s.
"""

import argparse
import asyncio
import cProfile
import json
import logging
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, os.environ.get("ASYNCRL_TREE", str(Path(__file__).resolve().parents[2])))

# Before soak_bench, which puts its own checkout in front.
import asyncrl
import sandbox
import verifiers

# Else both sides would be the same.
assert all(sys.path[0] in str(module.__file__) for module in (asyncrl, sandbox, verifiers)), sys.path

GOAL_SHARE, GOAL_RATE = 0.10, 10_000
PARTS = {
    "HTTP": (
        "aiohttp",
        "asyncio",
        "selectors",
        "multidict",
        "yarl",
        "serving/sglang/http",
    ),
    "parsing": ("serving/sglang/messages", "msgspec", "base64", "json/", "model/column_bytes"),
    "segments": ("serving/confirmation", "asyncrl/records", "model/token_text"),
    "generation": (
        "rollout/generate",
        "rollout/expected_load",
        "asyncrl/serving/",
        "asyncrl/loops",
    ),
    "queue": ("asyncrl/replay/",),
    "journal, hand-over": ("asyncrl/journal/",),
    "verdicts": ("rollout/", "asyncrl/algorithms", "/verifiers/", "asyncrl/tasks"),
    "takes": ("asyncrl/controller/", "asyncrl/wire/"),
}
"""Part -> what its files' paths hold; the first that fits counts."""
THREAD = "journal, its thread"
NUM_EVENTS = 3000


def part_of(file: str) -> str:
    return next((part for part, places in PARTS.items() if any(place in file for place in places)), "other")


def shares_by_part(profile: cProfile.Profile) -> dict[str, float]:
    """Part -> share of the CPU time."""
    seconds: dict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if file != "~" or not callers:
            seconds[part_of(file)] += own
            continue
        for (caller, _, _), (_, _, of_caller, _) in callers.items():
            seconds[part_of(caller)] += of_caller
    total = sum(seconds.values())
    return {part: found / total for part, found in seconds.items()}


def journal_clock() -> int:
    """The CPU clock of the thread that writes the journal."""
    (thread,) = (each for each in threading.enumerate() if each.name == "journal")
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


def measure_once(
    num_streams: int, num_tokens: int, chunk_tokens: int, *, is_profiled: bool
) -> dict[str, float]:
    """Tokens, CPU seconds of both threads; with a profile also the shares of the first by part."""
    import soak_bench

    soak_bench.CHUNK_TOKENS = chunk_tokens
    logging.disable(logging.WARNING)
    profile, found = cProfile.Profile(time.thread_time), {}
    close = soak_bench.Journal.close

    def timed_close(journal: object) -> None:
        found[THREAD] = time.clock_gettime(journal_clock())
        close(journal)

    soak_bench.Journal.close = timed_close
    with tempfile.TemporaryDirectory() as folder:
        begin = time.thread_time()
        if is_profiled:
            profile.enable()
        result = asyncio.run(soak_bench.measure(num_streams, num_tokens, 0.0, Path(folder)))
        profile.disable()
        found["its own thread"] = time.thread_time() - begin
    found["tokens"] = 1e6 * result["million tokens"]
    return found | (shares_by_part(profile) if is_profiled else {})


def read_alone(num_events: int, chunk_tokens: int) -> dict[str, float]:
    """CPU seconds per million tokens of what is done with a stream's bytes, on prepared events."""
    from asyncrl.serving.confirmation import Confirmation
    from asyncrl.serving.sglang.messages import parse_event

    events = [_event(number, chunk_tokens) for number in range(num_events)]
    # The best of five: another process may have had the caches.
    parsing, segments = [], []
    for _ in range(5):
        confirmation, begin = Confirmation(0), time.thread_time()
        chunks = [parse_event(event) for event in events]
        parsed = time.thread_time()
        for chunk in chunks:
            confirmation.feed(chunk)
        parsing.append(parsed - begin)
        segments.append(time.thread_time() - parsed)
    millions = num_events * chunk_tokens / 1e6
    return {"parsing": min(parsing) / millions, "segments": min(segments) / millions}


def _event(number: int, chunk_tokens: int) -> bytes:
    """As a server writes it, log-probs with all digits."""
    tokens = [1000 + (7919 * (number + place)) % 140_000 for place in range(chunk_tokens)]
    count = (number + 1) * chunk_tokens
    meta = {
        "id": "run-0-0-0000000001",
        "finish_reason": None,
        "prompt_tokens": 200,
        "weight_version": "0",
        "num_retractions": 0,
        "output_token_logprobs": [[-1.0 / (1 + token % 97), token, None] for token in tokens],
        "completion_tokens": count,
        "weight_versions": [{"version": "0", "start": 0, "end": count}],
    }
    return json.dumps({"output_ids": tokens, "meta_info": meta}).encode()


def run_child(tree: Path, options: argparse.Namespace, *words: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--once", "--streams", str(options.streams)]
    done = subprocess.run(
        [*command, "--tokens", str(options.tokens), "--chunk", str(options.chunk), *words],
        env=os.environ | {"ASYNCRL_TREE": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    """CPU seconds per million tokens, by part."""
    if options.alone:
        return run_child(tree, options, "--alone")
    plain, profiled = run_child(tree, options), run_child(tree, options, "--profile")
    per_million = {name: 1e6 * plain[name] / plain["tokens"] for name in ("its own thread", THREAD)}
    parts = {part: profiled.get(part, 0.0) * per_million["its own thread"] for part in [*PARTS, "other"]}
    return {**parts, THREAD: per_million[THREAD], "together": sum(per_million.values())}


def sum_of(found: dict[str, float]) -> float:
    return found.get("together", sum(found.values()))


def report(rounds: list[dict[str, dict[str, float]]], names: list[str]) -> None:
    """Medians by part, side by side, and what they come to at the goal's rate."""
    print("CPU seconds per million tokens, medians of the rounds, which took turns")
    print(f"  {'':22s}" + "".join(f"{name:>10s}" for name in names))
    for part in rounds[0][names[0]]:
        values = [statistics.median(each[name][part] for each in rounds) for name in names]
        ratio = f"{values[0] / max(values[-1], 1e-9):9.2f}x" if len(values) > 1 else ""
        print(f"  {part:22s}" + "".join(f"{value:10.2f}" for value in values) + ratio)
    for name in names if "together" in rounds[0][names[0]] else ():
        share = statistics.median(each[name]["together"] for each in rounds) * GOAL_RATE / 1e6
        print(f"  {name}: {share:.1%} of a core per {GOAL_RATE:,} tokens/s, goal {GOAL_SHARE:.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256, help="at once")
    parser.add_argument("--tokens", type=int, default=2048, help="longest response")
    parser.add_argument("--chunk", type=int, default=16, help="tokens that a server sends at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--alone", action="store_true", help="only parsing and segments, without servers")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        sizes = (options.streams, options.tokens, options.chunk)
        if options.alone:
            print(json.dumps(read_alone(NUM_EVENTS, options.chunk)))
            return 0
        print(json.dumps(measure_once(*sizes, is_profiled=options.profile)))
        return 0
    trees = {"here": Path(__file__).resolve().parents[2]}
    if options.against is not None:
        trees = {"there": options.against.resolve(), **trees}
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(1, options.rounds + 1):
        rounds.append({name: measure(tree, options) for name, tree in trees.items()})
        costs = ", ".join(f"{name} {sum_of(found):.2f}" for name, found in rounds[-1].items())
        print(f"round {number}: {costs} CPU seconds per million tokens", flush=True)
    report(rounds, list(trees))
    return 0


if __name__ == "__main__":
    sys.exit(main())
