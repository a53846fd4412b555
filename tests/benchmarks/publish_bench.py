"""Time to publish a version against the time to copy its bytes, for `make bench`.

    python tests/benchmarks/publish_bench.py [--cores 0,1] [--rounds 5] [--only 20M,135M] [--servers 1,2,4]

Publisher.prepare and Publisher.install of a Megatron-core model; float32, random weights; medians.

First on a real SGLang server (idle, on the same cores), by each serving.weight_transport. In milliseconds:

    prepare     before servers pause: weights exported, digested and written, for transports that read them
    pause, load, verify, continue   the parts of an install; load is the transport, verify the digests there
    folder      after it, in the background: what servers that join later read

Then `distributed` to several light servers (tests/fakes/receiver.py), because SGLang's would not fit into the
memory of a small machine: processes that join the group and load into a state dict. Next to the time, the CPU
time of the trainer and of each server, which does not depend on how many cores they share.

Limits on the same cores and disk: copy is one memcpy of the bytes; file is writing them to a file and reading
them back, without a sync, as a publish by files does.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from fakes.models import write_model
from fakes.receivers import running_receivers, state_of
from serving.engine.servers import running_server

from asyncrl.serving.sglang import http
from asyncrl.trainer.ranks import ranks

TRANSPORTS = ("disk", "distributed")
SHAPES = {
    "0.6M": {"hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 384},
    "20M": {"hidden_size": 512, "num_hidden_layers": 6, "head_dim": 128, "intermediate_size": 1536},
    "135M": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
    },
}
COMMON = {
    "vocab_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
PARTS = {"/pause_generation": "pause", "/weights_checker": "verify", "/continue_generation": "continue"}
COLUMNS = ("prepare", "pause", "load", "verify", "continue", "together", "folder")


def build(folder: Path):
    """The trainer's model with the weights of `folder`."""
    # Imported late, after Megatron's warnings of missing CUDA packages are turned off.
    from fakes.policies import load_policy

    return load_policy(folder)


@contextlib.contextmanager
def timed_requests() -> Iterator[dict[str, float]]:
    """Seconds by part of an install, added up while the context lasts."""
    seconds: dict[str, float] = defaultdict(float)
    original = http.post

    async def post(session, url, path, body, **options):
        begin = time.perf_counter()
        try:
            return await original(session, url, path, body, **options)
        finally:
            seconds[PARTS.get(path, "load")] += time.perf_counter() - begin

    with mock.patch.object(http, "post", post):
        yield seconds


def bench_transport(
    model, folder: Path, url: str, transport: str, options: argparse.Namespace
) -> dict[str, float]:
    """Median seconds of each column, after one round that does not count."""
    rows: list[dict[str, float]] = []
    publisher = make_publisher(folder, transport, options.bucket_mib * 2**20)
    for version in range(options.rounds + 1):
        begin = time.perf_counter()
        publication = publisher.prepare(version, model)
        row = {"prepare": time.perf_counter() - begin}
        with timed_requests() as parts:
            (outcome,) = publisher.install(publication, model, [url]).values()
        row["together"] = time.perf_counter() - begin
        assert outcome.is_installed, f"{outcome.detail}\n{(folder / 'log').read_text()[-3000:]}"
        row |= {part: parts[part] for part in ("pause", "verify", "continue")}
        row["load"] = row["together"] - row["prepare"] - sum(parts[part] for part in PARTS.values())
        row["folder"] = wait_for_folder(publisher)
        rows.append(row)
    publisher.close()
    return {column: statistics.median(row[column] for row in rows[1:]) for column in COLUMNS}


def bench_servers(model, folder: Path, count: int, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a publish to `count` light servers: on the clock, and of CPU on either side."""
    rows: list[dict[str, float]] = []
    publisher = make_publisher(folder, "distributed", options.bucket_mib * 2**20)
    with running_receivers(count) as urls:
        for version in range(options.rounds + 1):
            cpu, of_servers, begin = time.process_time(), cpu_of(urls), time.perf_counter()
            outcomes = publisher.install(publisher.prepare(version, model), model, urls)
            row = {"together": time.perf_counter() - begin, "trainer": time.process_time() - cpu}
            row["server"] = (cpu_of(urls) - of_servers) / count
            assert all(outcome.is_installed for outcome in outcomes.values()), outcomes
            row["folder"] = wait_for_folder(publisher)
            rows.append(row)
        publisher.close()
    return {column: statistics.median(row[column] for row in rows[1:]) for column in rows[0]}


def make_publisher(folder: Path, transport: str, bucket_bytes: int):
    from asyncrl.trainer.bootstrap import end_now
    from asyncrl.trainer.publishing.transports import publisher_of

    return publisher_of(
        transport, folder / "publications", base=folder, bucket_bytes=bucket_bytes, failed=end_now
    )


def wait_for_folder(publisher) -> float:
    begin = time.perf_counter()
    publisher._folders.wait()
    return time.perf_counter() - begin


def cpu_of(urls: list[str]) -> float:
    return sum(state_of(url)["cpu_seconds"] for url in urls)


def copy_seconds(num_bytes: int) -> float:
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    return best(lambda: target.copy_(source))


def file_seconds(num_bytes: int, folder: Path) -> float:
    source, target, path = bytes(num_bytes), bytearray(num_bytes), folder / "bytes"

    def write_and_read() -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(source)
        with path.open("rb", buffering=0) as file:
            file.readinto(target)

    return best(write_and_read)


def best(action: Callable[[], object], num_rounds: int = 5) -> float:
    """Seconds of the fastest round: the limit, not the mean of a machine with other work."""
    seconds = []
    for _ in range(num_rounds):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def bench_size(name: str, folder: Path, options: argparse.Namespace) -> None:
    write_model(folder, "Qwen3", **(COMMON | SHAPES[name]))
    model = build(folder)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    copy, file = copy_seconds(num_bytes), file_seconds(num_bytes, folder)
    print(
        f"{name} parameters, {num_bytes / 1e6:.1f} MB: copy {1e3 * copy:.2f} ms, file {1e3 * file:.2f} ms; "
        f"publish in ms:"
    )
    if options.transports:
        bench_real_server(model, folder, copy, file, options)
    for count in map(int, options.servers.split(",")):
        row = bench_servers(model, folder, count, options)
        print(
            f"  distributed to {count} light servers: {1e3 * row['together']:.1f} ms, "
            f"{row['together'] / file:.1f}x file; CPU: trainer {1e3 * row['trainer']:.1f} ms, each server "
            f"{1e3 * row['server']:.1f} ms; folder {1e3 * row['folder']:.1f} ms",
            flush=True,
        )


def bench_real_server(model, folder: Path, copy: float, file: float, options: argparse.Namespace) -> None:
    print(f"  {'':12s}" + "".join(f"{column:>10s}" for column in COLUMNS) + f"{'/ copy':>10s}{'/ file':>10s}")
    sizes = {"max_total_tokens": 4096, "max_running_requests": 8}
    with running_server(folder, folder / "log", **sizes) as (url, _):
        for transport in options.transports.split(","):
            row = bench_transport(model, folder, url, transport, options)
            cells = "".join(f"{1e3 * row[column]:10.1f}" for column in COLUMNS)
            ratios = f"{row['together'] / copy:9.1f}x{row['together'] / file:9.1f}x"
            print(f"  {transport:12s}{cells}{ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", default="1,2,4")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="on a real server; may be empty")
    parser.add_argument("--bucket-mib", type=int, default=64, help="serving.weight_bucket_bytes")
    parser.add_argument("--only", default=",".join(SHAPES))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    ranks.start(threads=1, seed=0)
    print(f"cores {arguments.cores}, load before {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="asyncrl-publish-") as temporary:
        for name in arguments.only.split(","):
            bench_size(name, Path(temporary) / name, arguments)
    ranks.stop()


if __name__ == "__main__":
    main()
