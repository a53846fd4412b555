"""Noise of known size on the weights that roll out, and on none that are trained: the axis of mismatch.

    ASYNCRL_ABLATION_NOISE=0.03 python tests/benchmarks/stalest.py train RECIPE

starts the trainer by this file. Each tensor W of a published version is then W + s rms(W) N(0, 1): fresh in
every version, and the same when a version is published again. Checkpoints and exports are not touched.
Held-out answers come from the same servers, and so from noised weights too.
"""

import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[3]
VARIABLE = "ASYNCRL_ABLATION_NOISE"
"""Holds s."""


def noised(
    weights: Iterable[tuple[str, "Tensor"]], version: int, size: float
) -> Iterator[tuple[str, "Tensor"]]:
    """Each tensor with noise of `size` times its root mean square."""
    import torch

    for name, tensor in weights:
        source = torch.Generator().manual_seed(zlib.crc32(f"{version} {name}".encode()))
        noise = torch.randn(tensor.shape, generator=source, dtype=torch.float32).to(tensor.device)
        scale = size * tensor.float().square().mean().sqrt()
        yield name, (tensor.float() + scale * noise).to(tensor.dtype).contiguous()


def install(size: float) -> None:
    """From now on this process publishes noised weights."""
    # Megatron may only be imported once a rank has started.
    from asyncrl.trainer.publishing import publish

    write, export = publish.Publisher.write, publish.export_weights

    def write_noised(publisher, version, model):
        publish.export_weights = lambda exported: noised(export(exported), version, size)
        try:
            return write(publisher, version, model)
        finally:
            publish.export_weights = export

    publish.Publisher.write = write_noised


def main() -> int:
    from asyncrl.trainer import main as trainer

    start = trainer.start_learner

    def start_noised(recipe):
        learner = start(recipe)
        install(float(os.environ[VARIABLE]))
        return learner

    trainer.start_learner = start_noised
    return trainer.main()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
