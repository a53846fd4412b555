"""What a data source may name, and what it may not name together."""

import gzip
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from pydantic import ValidationError

from asyncrl.data.files import read_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Data, Source
from asyncrl.recipe.sources import OTHER_FILES, how_to_convert, is_data_file


def test_a_gym_has_a_size_a_seed_and_a_configuration():
    data = Data(
        train=[Source(gym="countdown", size=20, seed=1), Source(path="a.jsonl")],
        heldout=Source(gym="countdown"),
    )
    train, file = data.train_sources()
    (heldout,) = data.heldout_sources()
    assert (train.size, train.seed, train.config) == (20, 1, {})
    assert (heldout.size, heldout.seed, heldout.config) == (500, 1_000_000, {})
    assert (file.size, file.seed, file.config) == (None, None, None)
    assert (train.title(), file.title()) == ("gym countdown", "a.jsonl")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({}, "A source has neither path nor gym"),
        ({"path": "a.jsonl", "gym": "gcd"}, "A source has both path and gym"),
        ({"path": "a.jsonl", "size": 3}, "a.jsonl has the size 3, but only a gym has one"),
        ({"path": "a/b", "options": {}}, r"a/b has the options \{\}, but only a gym has one"),
        ({"path": "a/b", "config": {"a": 1}}, r'a/b has the config \{"a": 1\}, expected the name of one'),
        ({"gym": "gcd", "split": "train"}, "gym gcd has the split 'train', but a gym has none"),
        ({"gym": "gcd", "columns": "gsm8k"}, "gym gcd has columns, but the rows of a gym need no mapping"),
        ({"gym": "gcd", "config": "main"}, "gym gcd has the config 'main', expected a mapping"),
        ({"gym": {"gcd": 2, "lcm": 1}}, "gym is a mapping of gcd, lcm, expected .* List a source for each"),
    ],
)
def test_keys_that_do_not_belong_together_are_refused(source: dict[str, Any], complaint: str):
    with pytest.raises(ValidationError, match=complaint):
        Source(**source)


def _data(seed: int, size: int, **changes: Any) -> Data:
    train = Source(gym="gcd", seed=10, size=10, config={"max_value": 9})
    keys: dict[str, Any] = {"gym": "gcd", "seed": seed, "size": size, "config": {"max_value": 9}}
    return Data(train=train, heldout=Source(**keys | changes))


@pytest.mark.parametrize(("seed", "size"), [(10, 10), (19, 1), (5, 6), (0, 100)])
def test_held_out_tasks_that_are_trained_on_are_refused(seed: int, size: int):
    # Task i is made from seed + i: training has the seeds 10 to 19.
    complaint = (
        rf"gym gcd for the seeds {seed} to {seed + size - 1}, but data.train has 10 to 19 .* to 20 or more"
    )
    with pytest.raises(ValidationError, match=complaint):
        _data(seed, size)


def test_other_seeds_other_configurations_and_other_gyms_are_held_out():
    for data in (_data(20, 5), _data(5, 5), _data(10, 10, config={}), _data(10, 10, gym="lcm")):
        assert len(data.heldout_sources()) == 1


WEIGHTED = [{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl", "weight": 3}]


def test_a_word_alone_says_how_shares_change() -> None:
    data = Data.model_validate({"train": WEIGHTED, "mixture": "signal"})
    assert (data.mixture.rebalance, data.mixture.floor) == ("signal", 0.2)
    assert Data.model_validate({"train": WEIGHTED}).mixture.rebalance == "never"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"train": "a.jsonl", "mixture": "signal"},
            "data.train has one source: there are no shares to change",
        ),
        ({"train": ["a.jsonl", "b.jsonl"], "mixture": "signal"}, "data.train has no weights"),
        ({"train": WEIGHTED, "mixture": {"floor": 0.5}}, "data.mixture.rebalance is never: shares are those"),
        ({"train": WEIGHTED, "mixture": {"rebalance": "signal", "floor": 0}}, "greater than 0"),
    ],
)
def test_shares_that_cannot_change_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Data.model_validate(keys)


TABLE_OF_PANDAS = pickle.dumps(pandas.DataFrame({"prompt": ["1+1="], "answer": [2]}))


@pytest.mark.parametrize(
    ("name", "content", "made"),
    [
        ("a table's rows.pkl", TABLE_OF_PANDAS, "a table's rows.jsonl"),
        ("rows.jsonl.gz", gzip.compress(b'{"prompt": "1+1=", "answer": 2}\n', mtime=0), "rows.jsonl"),
    ],
)
def test_the_command_that_is_named_makes_rows_that_are_read(
    tmp_path: Path, name: str, content: bytes, made: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"expected a \.jsonl") as refused:
        list(read_rows(str(tmp_path / name), key="data.train"))
    command = str(refused.value).partition(" with: ")[2]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})
    (row,) = read_rows(str(tmp_path / made), key="data.train")
    assert row.row == {"prompt": "1+1=", "answer": 2}


@pytest.mark.parametrize("ending", OTHER_FILES)
def test_each_ending_that_holds_rows_has_a_command_and_is_no_hub_id(ending: str) -> None:
    assert is_data_file(f"sub/rows{ending}")
    assert " with: " in how_to_convert(f"sub/rows{ending}")


def test_an_unknown_ending_has_no_command() -> None:
    assert how_to_convert("rows.txt") == ""
