"""How long a run of many rows takes to start: CPU seconds, wall seconds and peak memory.

    python tests/benchmarks/many_rows_bench.py [--rows 1800000]

Rows have the columns of verl (chat messages, reward_model.ground_truth) and prompts of 300 to 600 characters,
as JSONL and as parquet. Either all differ, or each is there 100 times, as in DAPO-Math-17k of the hub. The
first start reads, checks and packs them; the second finds them in the cache. A start is a process of its own:
imports, the rows, and the digest of the data for the run folder.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The repository first: tests/verifiers would pass for the package.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from fakes.model_folder import write_tokenizer

from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.run.folder import data_digests
from asyncrl.tasks.task_list import read_train_tasks
from asyncrl.tasks.verifier_cache import VerifierCache

REPEATS = 100
ROWS_PER_CHUNK = 50_000
TEMPLATE = Path(__file__).parents[1] / "model" / "chat_templates" / "smollm2.jinja"
SETTINGS = {"context_tokens": 4096}


def make_rows(num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of which no two ask the same."""
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnop", k=source.randint(1, 9))) for _ in range(4000)]
    text = " ".join(source.choices(words, k=100_000))
    for number in range(num_rows):
        begin = source.randrange(len(text) - 600)
        question = f"{number}. {text[begin : begin + source.randint(290, 590)]}"
        yield {
            "data_source": "math",
            "prompt": [{"content": question, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(source.randrange(20_000)), "style": "rule"},
            "extra_info": {"index": f"{number:032x}", "split": "train"},
        }


def write(path: Path, num_distinct: int, num_repeats: int) -> None:
    """All rows `num_repeats` times, one time after the other."""
    rows = make_rows(num_distinct)
    chunks = iter(lambda: list(itertools.islice(rows, ROWS_PER_CHUNK)), [])
    if path.suffix == ".jsonl":
        texts = ("".join(json.dumps(row) + "\n" for row in chunk) for chunk in chunks)
        with path.open("w") as file:
            file.writelines(texts if num_repeats == 1 else list(texts) * num_repeats)
        return
    import pyarrow
    import pyarrow.parquet

    tables = map(pyarrow.Table.from_pylist, chunks)
    first = next(tables)
    rest = itertools.chain([first], tables)
    with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
        for table in rest if num_repeats == 1 else list(rest) * num_repeats:
            writer.write_table(table)


def start(data: str, model: str) -> None:
    """What a start does with data.train; prints how many tasks there are."""
    raw = {"name": "rows", "model": {"path": model}, "data": {"train": {"path": data, "columns": "verl"}}}
    recipe = Recipe.model_validate({**raw, "evaluation": {"every_steps": 0}})
    codec = TextCodec(Path(model))
    found = read_train_tasks(recipe, codec, VerifierCache(Path(model)), SETTINGS["context_tokens"])
    data_digests(recipe)
    print(len(found.tasks))


def measure(data: Path, model: Path, cache: Path, num_tasks: int) -> str:
    """CPU seconds, wall seconds and peak memory of a start."""
    command = [sys.executable, __file__, "--start", str(data), str(model)]
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or int(said) != num_tasks:
        raise SystemExit(f"a start ended with {process.returncode} and {said.strip() or 'no'} tasks")
    return f"{used.ru_utime + used.ru_stime:8.1f} s {wall:8.1f} s {used.ru_maxrss / 1024:8.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--start", nargs=2, metavar=("DATA", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        start(*arguments.start)
        return
    columns = ("first: CPU", "wall", "peak", "second: CPU", "wall", "peak")
    print(
        f"{arguments.rows:,d} rows".ljust(32)
        + "{:>10s} {:>10s} {:>12s} {:>11s} {:>9s} {:>12s}".format(*columns)
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = write_tokenizer(folder / "model")
        (model / "chat_template.jinja").write_text(TEMPLATE.read_text())
        for num_repeats in (1, REPEATS):
            num_distinct = arguments.rows // num_repeats
            for suffix in (".jsonl", ".parquet"):
                data = folder / f"train{suffix}"
                write(data, num_distinct, num_repeats)
                found = [measure(data, model, folder / "cache", num_distinct) for _ in range(2)]
                print(f"{suffix[1:]:8s} {num_distinct:12,d} distinct  " + " ".join(found), flush=True)
                data.unlink()


if __name__ == "__main__":
    main()
