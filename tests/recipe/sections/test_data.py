"""What a data source may name, and what it may not name together."""

from typing import Any

import pytest
from pydantic import ValidationError

from asyncrl.recipe import Data, Source


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
