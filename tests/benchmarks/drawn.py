"""Figures of the benchmarks: panels side by side, and the same bytes for the same numbers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def panels(path: Path, count: int, *, width: float, height: float, dpi: float = 100.0) -> Iterator[list[Any]]:
    """`count` axes with a grid, each `width` x `height` inches, to draw on; then written to `path`."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "asyncrl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, count, figsize=(width * count, height), layout="constrained", squeeze=False, dpi=dpi
    )
    yield list(axes[0])
    for panel in axes[0]:
        panel.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
