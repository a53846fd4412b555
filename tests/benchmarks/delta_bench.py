"""A publish of all weights against one of what changed, on a real SGLang server (idle, on the same cores).

    python tests/benchmarks/delta_bench.py [--model FOLDER] [--rates 1e-6,1e-5] [--servers 1] [--rounds 5]

Bfloat16 weights of the model (else random ones in the shape of SmolLM2-135M), rounded from float32
masters that move as Adam moves them for gradients of noise. By the disk that both see, and as without one, by
HTTP on one machine. Medians over versions, behind the first two:

    share      changed words
    MB         that a server reads
    write      seconds before servers are told: weights exported, compared, digested and written
    servers    seconds until all serve the version; pause: in which one of them generates nothing
    together   seconds of the trainer; folder: seconds until the whole folder is written in the background
    memory MB  that the trainer's process grew by
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import torch
import transformers
from benchmarks.publish_bench import COMMON, SHAPES
from fakes.file_service import running_files
from fakes.models import write_model
from serving.engine.servers import running_server

from asyncrl.model.folder import check_model_folder
from asyncrl.trainer.ranks import ranks

STEADY = 0.23
"""Standard deviation of Adam's update over the learning rate: sqrt((1 - 0.9) / (1 + 0.9))."""
COLUMNS = ("share", "MB", "write", "servers", "pause", "together", "folder", "memory MB")


class Trained:
    """A model with its masters."""

    def __init__(self, folder: Path) -> None:
        from fakes.policies import build_model

        from asyncrl.trainer.network.convert import load_weights
        from asyncrl.trainer.network.export import open_weights

        self.model = build_model(check_model_folder(folder), torch.bfloat16)
        load_weights(self.model, open_weights(folder))
        self._generator = torch.Generator().manual_seed(0)
        self._masters = [self._master(parameter) for parameter in self.model.parameters()]
        largest = max(map(torch.numel, self._masters))
        self._noise = torch.randn(largest + 2**20, generator=self._generator)

    def step(self, rate: float) -> None:
        for parameter, master in zip(self.model.parameters(), self._masters, strict=True):
            start = int(torch.randint(2**20, (), generator=self._generator))
            noise = self._noise[start : start + master.numel()].view(master.shape)
            parameter.data.copy_(master.add_(noise, alpha=STEADY * rate))

    def _master(self, parameter: torch.Tensor) -> torch.Tensor:
        """Anywhere between the numbers that round to another one, as after many steps."""
        master = parameter.detach().float()
        spacing = torch.exp2(torch.frexp(master).exponent - 8.0)
        return master + spacing * (torch.rand(master.shape, generator=self._generator) - 0.5)


def bench(
    trained: Trained, urls: list[str], folder: Path, rate: float, kind: str, rounds: int
) -> list[float]:
    """Medians, by column."""
    from asyncrl.serving.publication import find_load
    from asyncrl.trainer.publishing.encodings import DeltaFolders, LoadDeltas
    from asyncrl.trainer.publishing.publish import Publisher

    encoding, way = kind.split()

    def encoded(folders, load):
        if encoding == "full":
            return folders, load
        deltas = DeltaFolders(folders, is_auto=False, is_compressed=way == "http")
        return deltas, LoadDeltas(load, wait=folders.wait)

    rows, before = [], psutil.Process().memory_info().rss
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(running_files(folder))
        load = find_load(shared_disk=way == "disk", service_url=lambda: files, run_folder=folder)
        publisher = Publisher(
            folder / "publications", base=folder / "model", files=load, encoded=encoded, failed=print
        )
        stack.callback(publisher.close)
        for version in range(rounds + 2):
            trained.step(rate)
            begin = time.perf_counter()
            publication = publisher.prepare(version, trained.model)
            written = time.perf_counter()
            outcomes = publisher.install(publication, trained.model, urls)
            end = time.perf_counter()
            assert all(it.is_installed and not it.detail for it in outcomes.values()), outcomes
            found = publisher.columns(outcomes)
            # Not part of a step that is longer than the write.
            publisher._folders.wait()
            rows.append(
                [
                    *(found.get("changed_share", float("nan")), found["publish_bytes"] / 1e6),
                    *(written - begin, end - written, found["publish_pause_seconds"], end - begin),
                    *(time.perf_counter() - begin, (psutil.Process().memory_info().rss - before) / 1e6),
                ]
            )
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return [statistics.median(column) for column in zip(*rows[2:], strict=True)]


@contextlib.contextmanager
def running(folder: Path, count: int) -> Iterator[list[str]]:
    sizes = {"max_total_tokens": 4096, "max_running_requests": 8}
    with contextlib.ExitStack() as stack:
        logs = (folder / f"log{number}" for number in range(count))
        servers = (running_server(folder / "model", log, dtype="bfloat16", **sizes) for log in logs)
        yield [stack.enter_context(server)[0] for server in servers]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rates", default="1e-6,1e-5,4e-5")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--kinds", default="full disk,delta disk,full http,delta http")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    ranks.start(threads=1, seed=0)
    with tempfile.TemporaryDirectory(prefix="asyncrl-deltas-") as temporary:
        folder = Path(temporary)
        if arguments.model is None:
            write_model(folder / "model", "Qwen3", **(COMMON | SHAPES["135M"]))
        else:
            (folder / "model").symlink_to(arguments.model.resolve())
        trained = Trained(folder / "model")
        print("starting servers", file=sys.stderr, flush=True)
        with running(folder, arguments.servers) as urls:
            print(f"{'':22s}" + "".join(f"{column:>11s}" for column in COLUMNS))
            for rate in map(float, arguments.rates.split(",")):
                for kind in arguments.kinds.split(","):
                    row = bench(trained, urls, folder, rate, kind, arguments.rounds)
                    print(f"{rate:8.0e} {kind:13s}" + "".join(f"{cell:11.4g}" for cell in row), flush=True)
    ranks.stop()


if __name__ == "__main__":
    main()
