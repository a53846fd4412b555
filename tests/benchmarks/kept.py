"""Output of benchmarks: rows of a JSON Lines file, Markdown tables, figures, a part of a page."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.errors import InputError

Kept = TypeVar("Kept")


def read_kept(kind: type[Kept], path: Path) -> list[Kept]:
    """Rows of the file as instances of a dataclass; none of a missing file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [kind(**json.loads(line)) for line in lines]


def keep(row: Any, path: Path) -> None:
    """Appends a dataclass as one line. A killed process leaves a whole line or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, a line per row."""
    lines = [" | ".join(map(str, cells)) for cells in (heads, *rows)]
    head, *body = (f"| {line} |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(heads), *body])


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replaces what stands between the marks. Raises InputError where the page lacks one of them."""
    head, has_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, has_end, tail = rest.partition(end)
    if not has_begin or not has_end:
        raise InputError(f"{page} lacks {begin.strip() if not has_begin else end.strip()!r}.")
    page.write_text(head + begin + text + end + tail, encoding="utf-8")


@contextlib.contextmanager
def panels(path: Path, count: int, *, width: float, height: float, dpi: float = 100.0) -> Iterator[list[Any]]:
    """`count` axes with a grid, each `width` x `height` inches, to draw on; then written to `path`. Equal
    numbers give equal bytes."""
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
