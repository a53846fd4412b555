"""Recipes are YAML with strict kinds: a value is a number, a truth value or text as it looks."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.errors import InputError
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.yaml_text import read_yaml, write_yaml

RECIPE = "name: t\nmodel: {path: m}\ndata: {train: d.jsonl, heldout: h.jsonl}\n"
LOOKALIKES = st.sampled_from(
    [
        "yes",
        "no",
        "on",
        "off",
        "y",
        "010",
        "1:30",
        "1e-6",
        "1_000",
        "null",
        "~",
        "",
        "true",
        "0x1f",
        ".5",
        "=",
        "<<",
    ]
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | LOOKALIKES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | LOOKALIKES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("False", False), ("null", None), ("~", None), ("", None)),
        *(("8", 8), ("-3", -3), ("+3", 3), ("0", 0), ("1_000", 1000)),
        *(("1e-6", 1e-6), ("1.5e3", 1500.0), (".5", 0.5), ("5.", 5.0), ("-.inf", -math.inf)),
        *(("yes", "yes"), ("off", "off"), ("010", "010"), ("1:30", "1:30"), ("0o17", "0o17")),
        *(("1.2.3", "1.2.3"), ("2024-01-01", "2024-01-01"), ("0x1f", "0x1f"), ("e5", "e5"), (".", ".")),
    ],
)
def test_a_plain_value_is_what_it_looks_like(text: str, value: object) -> None:
    read = read_yaml(text)
    assert read == value and type(read) is type(value)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLAIN)
def test_what_is_written_is_read_back_equal(value: Any) -> None:
    assert read_yaml(write_yaml(value)) == value


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.num_steps=010", r"trainer\.num_steps is '010'.*without quotes, colons or leading zeros"),
        ("serving.request_timeout_seconds=1:30", r"request_timeout_seconds is '1:30'"),
        ("trainer.num_steps=true", r"trainer\.num_steps is true"),
        ("trainer.learning_rate=true", r"trainer\.learning_rate is true"),
        ("data.is_shuffled=yes", r"data\.is_shuffled is 'yes'.*Write true or false"),
        ("data.is_shuffled=1", r"data\.is_shuffled is 1"),
        ("rollout.samples_per_group='8'", r"samples_per_group is '8'"),
        ("name=7", r"name is 7"),
        ("seed=4294967296", r"seed is 4294967296: input should be less than 2147483648"),
        ("data.train={gym: chain_sum, seed: 4294967296}", r"seed is 4294967296"),
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path: Path, override: str, said: str) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(InputError, match=said):
        load_recipe(tmp_path / "recipe.yaml", [override])


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 3000, "[" * 3000 + "]" * 3000, "{a: " * 3000 + "1" + "}" * 3000]
)
def test_deep_nesting_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="line 1 is nested more than 100 deep"):
        read_yaml(text)
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match="nested more than 100 deep"):
        load_recipe(tmp_path / "recipe.yaml")
