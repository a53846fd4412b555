"""Rows to train on, by what `--data` names: a benchmark with training rows, a hub id, or a file or folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.data.benchmarks import CATALOG, GATED
from asyncrl.data.columns import READY, Columns, to_row
from asyncrl.data.files import read_rows
from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe.sources import is_data_file
from asyncrl.system.hub import is_hub_id

KEY = "--data"
TRAINED = ("gsm8k", "mbpp")
"""Benchmarks whose repositories have a training split beside the one that is asked."""
PROMPTS = ("prompt", "question", "problem", "query", "instruction", "input")
ANSWERS = ("answer", "final_answer", "solution", "ground_truth", "gold", "target", "label", "output")
CODE = ("mbpp", "humaneval")
"""Ready columns whose rows the verifier `code` grades."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Sources of a recipe, as it writes them."""

    title: str
    """For the recipe's name and comments."""
    train: dict[str, Any]
    heldout: dict[str, Any] | None
    is_code: bool
    """Whether their verifier runs programs."""
    has_text: bool
    """Prompts are text, no chat messages."""
    remark: str
    """Why these columns."""
    response_tokens: int | None = None
    """Usual limit, where it is a benchmark's."""


def find_rows(given: str) -> Rows:
    """Reads a row of it, but of a known benchmark none. Raises InputError with the way out."""
    if given in CATALOG or given in GATED:
        return _of_benchmark(given)
    path, _, config = given.partition(":") if not Path(given).exists() else (given, "", "")
    if not Path(path).exists() and not is_data_file(path) and not is_hub_id(path):
        raise InputError(
            f"--data is {given}, which is no file here, no hub id (owner/name) and no benchmark."
            f"{did_you_mean(given, TRAINED)} Benchmarks with training rows: {', '.join(TRAINED)}."
        )
    row = _first(path, config or None, "train")
    columns, remark = recognised(row, path)
    source: dict[str, Any] = {"path": path}
    if config:
        source["config"] = config
    source["columns"] = columns
    made = to_row(_mapping(columns), row, path)
    return Rows(
        Path(path).stem.lower(),
        source,
        _heldout(path, config or None, source),
        is_code=columns in CODE or made.get("verifier") == "code",
        has_text=isinstance(made["prompt"], str),
        remark=remark,
    )


def recognised(row: Mapping[str, Any], path: str) -> tuple[str | dict[str, Any], str]:
    """(columns, why) of rows like this one: a ready mapping, else the usual names. Raises InputError."""
    for name, make in READY.items():
        if _fits(make, row):
            return name, f"recognised by the first row: {', '.join(map(str, row))}"
    prompt = next((name for name in PROMPTS if row.get(name)), None)
    answer = next((name for name in ANSWERS if row.get(name) is not None and name != prompt), None)
    if prompt is None or answer is None:
        missing = "a prompt" if prompt is None else "an answer"
        raise InputError(
            f"--data is {path}, whose rows have {', '.join(map(str, row)) or 'no columns'}: none of them "
            f"looks like {missing}. Rename columns to prompt and answer, or write a recipe around other "
            f"data and name the columns in data.train.columns (`asyncrl keys data.train.columns`)."
        )
    return {"prompt": prompt, "answer": answer}, "guessed by their names: look at them with asyncrl prompt"


def _of_benchmark(name: str) -> Rows:
    if name not in TRAINED:
        raise InputError(
            f"--data is {name}, a benchmark without training rows. Train on {' or '.join(TRAINED)}, a hub id "
            f"or a file, and name {name} in evaluation.benchmarks of the recipe."
        )
    benchmark = CATALOG[name]
    asked = benchmark.source
    train = {"path": asked.path, "config": asked.config, "revision": asked.revision, "columns": asked.columns}
    return Rows(
        name,
        train,
        {**train, "split": asked.split},
        is_code=benchmark.verifier == "code",
        has_text=True,
        remark=f"the benchmark {name}, pinned; its {benchmark.num_rows:,} test rows are held out",
        response_tokens=2 * benchmark.max_new_tokens,
    )


def _heldout(path: str, config: str | None, train: dict[str, Any]) -> dict[str, Any] | None:
    """The split test of a folder or hub id, where it has one."""
    if Path(path).is_file():
        return None
    for split in ("test", "validation"):
        try:
            _first(path, config, split)
        except InputError:
            continue
        return {**train, "split": split}
    return None


def _first(path: str, config: str | None, split: str) -> dict[str, Any]:
    for published in read_rows(path, key=KEY, config=config, split=split):
        return published.row
    raise InputError(f"--data is {path}, which has no rows. Name a file with one JSON object per line.")


def _mapping(columns: str | dict[str, Any]) -> Any:
    return READY[columns] if isinstance(columns, str) else Columns(**columns)


def _fits(make: Any, row: Mapping[str, Any]) -> bool:
    try:
        to_row(make, row, KEY)
    except InputError:
        return False
    return True
