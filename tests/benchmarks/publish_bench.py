"""Time to publish a version against the time to copy its bytes, for `make bench`.

    python tests/benchmarks/publish_bench.py [--cores 0,1] [--rounds 5] [--only 0.6M,20M,117M]

Publisher.write and Publisher.install of a Megatron-core model on a real SGLang server (idle, on the same
cores), by each serving.weight_transport; float32, random weights; medians over rounds. In milliseconds:

    write       weights exported, digested, written as safetensors, for servers that join with any transport
    pause, load, verify, continue   the parts of an install; load is the transport, verify the digests there

Limits on the same cores and disk: copy is one memcpy of the bytes; file is writing them to a file and reading
them back, without a sync, as a publish does.
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
from serving.engine.servers import running_server

from asyncrl.serving import sglang
from asyncrl.trainer import ranks

TRANSPORTS = ("disk", "tensor", "distributed")
SHAPES = {
    "0.6M": {"hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 384},
    "20M": {"hidden_size": 512, "num_hidden_layers": 6, "head_dim": 128, "intermediate_size": 1536},
    "117M": {
        "vocab_size": 4096,
        "hidden_size": 1024,
        "num_hidden_layers": 9,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 3072,
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
COLUMNS = ("write", "pause", "load", "verify", "continue", "together")


def build(folder: Path):
    """The trainer's model with the weights of `folder`."""
    # Imported late, after Megatron's warnings of missing CUDA packages are turned off.
    from asyncrl.model.folder import check_model_folder
    from asyncrl.trainer.convert import load_weights
    from asyncrl.trainer.export import open_weights
    from asyncrl.trainer.model import build_model

    model = build_model(check_model_folder(folder), torch.float32)
    load_weights(model, open_weights(folder))
    return model


@contextlib.contextmanager
def timed_requests() -> Iterator[dict[str, float]]:
    """Seconds by part of an install, added up while the context lasts."""
    seconds: dict[str, float] = defaultdict(float)
    original = sglang.post

    async def post(session, url, path, body, **options):
        begin = time.perf_counter()
        try:
            return await original(session, url, path, body, **options)
        finally:
            seconds[PARTS.get(path, "load")] += time.perf_counter() - begin

    with mock.patch.object(sglang, "post", post):
        yield seconds


def bench_transport(model, folder: Path, url: str, transport: str, num_rounds: int) -> dict[str, float]:
    """Median seconds of each column, after one round that does not count."""
    from asyncrl.trainer.publish import Publisher

    rows: list[dict[str, float]] = []
    publisher = Publisher(folder / "publications", base=folder, transport=transport)
    for version in range(num_rounds + 1):
        begin = time.perf_counter()
        written = publisher.write(version, model)
        row = {"write": time.perf_counter() - begin}
        with timed_requests() as parts:
            (outcome,) = publisher.install(written, [url]).values()
        assert outcome.is_installed, f"{outcome.detail}\n{(folder / 'log').read_text()[-3000:]}"
        row |= {part: parts[part] for part in ("pause", "verify", "continue")}
        row["load"] = outcome.seconds - sum(parts[part] for part in PARTS.values())
        row["together"] = row["write"] + outcome.seconds
        rows.append(row)
    publisher.close()
    return {column: statistics.median(row[column] for row in rows[1:]) for column in COLUMNS}


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


def bench_size(name: str, folder: Path, num_rounds: int) -> None:
    write_model(folder, "Qwen3", **(COMMON | SHAPES[name]))
    model = build(folder)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    copy, file = copy_seconds(num_bytes), file_seconds(num_bytes, folder)
    print(
        f"{name} parameters, {num_bytes / 1e6:.1f} MB: copy {1e3 * copy:.2f} ms, file {1e3 * file:.2f} ms; "
        f"publish in ms:"
    )
    print(f"  {'':12s}" + "".join(f"{column:>10s}" for column in COLUMNS) + f"{'/ copy':>10s}{'/ file':>10s}")
    sizes = {"max_total_tokens": 4096, "max_running_requests": 8}
    with running_server(folder, folder / "log", **sizes) as (url, _):
        for transport in TRANSPORTS:
            row = bench_transport(model, folder, url, transport, num_rounds)
            cells = "".join(f"{1e3 * row[column]:10.1f}" for column in COLUMNS)
            ratios = f"{row['together'] / copy:9.1f}x{row['together'] / file:9.1f}x"
            print(f"  {transport:12s}{cells}{ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(SHAPES))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    ranks.start(threads=1, seed=0)
    print(f"cores {arguments.cores}, load before {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="asyncrl-publish-") as temporary:
        for name in arguments.only.split(","):
            bench_size(name, Path(temporary) / name, arguments.rounds)
    ranks.stop()


if __name__ == "__main__":
    main()
