"""Makes tasks of reasoning-gym: `python -m asyncrl.data.gym_process REQUEST FILE`, in a process of its own.

Task i depends on seed + i alone, also where a dataset draws from generators that all code shares. The package
may print to standard output, which the parent drops."""

import dataclasses
import json
import os
import random
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.kernel import die_with_parent
from verifiers.gym import Dataset, build_dataset, may_be_scored, written_entry

REFUSED = 2
"""Exit code where the request cannot be met, by the user's mistake; standard error says why."""
UNMADE = "unmade"
"""Key of a row whose task could not be made; its value says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Tasks `start` to `stop`, exclusive, of a dataset of `size` tasks."""

    gym: str
    config: Mapping[str, Any]
    seed: int
    size: int
    start: int
    stop: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def main(request: Request, file: Path) -> int:
    """Writes a row per task. Exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = build_dataset(request.gym, request.config, seed=request.seed, size=request.size)
        except ValueError as error:
            print(error, file=sys.stderr)
            return REFUSED
        with file.open("w", encoding="utf-8") as stream:
            for index in range(request.start, request.stop):
                stream.write(json.dumps(make_row(request, dataset, index), ensure_ascii=False) + "\n")
    return 0


def make_row(request: Request, dataset: Dataset, index: int) -> dict[str, Any]:
    """A row of asyncrl's own; with UNMADE in the place of its prompt where the dataset fails."""
    import numpy

    random.seed(request.seed + index)
    numpy.random.seed((request.seed + index) % 2**32)
    try:
        entry = dataset[index]
        if entry["answer"] is not None and not may_be_scored(request.gym, entry["answer"]):
            # Such as Integral(f(x), x), with which any task of integration could be answered.
            return {UNMADE: f"its own answer is not a plain formula: {entry['answer']}"[:500]}
        answer = {"gym": request.gym, "config": request.config, "entry": written_entry(entry)}
        return {"prompt": str(entry["question"]), "answer": answer, "verifier": "gym"}
    except Exception as error:  # some configurations have no task for some seeds
        return {UNMADE: f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(Request(**json.loads(sys.argv[1])), Path(sys.argv[2])))
