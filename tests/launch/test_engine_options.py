"""Options of servers against the parser of the SGLang that is installed."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.launch import engine_options
from asyncrl.launch.engine_options import ask_sglang, check_arguments, check_options
from asyncrl.recipe.server_options import ALLOWED, KEYS, REFUSED, UNUSED

KEY = "serving.extra_arguments"


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return ask_sglang(("--page-size", "1"))


def test_the_installed_sglang_has_every_option_that_is_named(known: dict[str, Any]) -> None:
    options = known["options"]
    assert len(options) > 300 and not {*ALLOWED, *KEYS} - {*options}
    for beginning in (*REFUSED, *UNUSED):
        assert any(option.startswith(beginning) for option in options), beginning


def test_options_that_are_safe_pass(known: dict[str, Any]) -> None:
    assert known["refusal"] is None
    check_arguments(KEY, ["--page-size", "1"], known)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--chunked-prefil-size", "does not have. Did you mean --chunked-prefill-size?$"),
        # The nearest one is refused itself: its reason comes along.
        ("--speculative-algoritm", "Did you mean --speculative-algorithm?.* one token per pass"),
        ("--attn-dp-sise", "Did you mean --attn-dp-size?.* set serving.attention_data_parallel_size"),
        # SGLang takes the beginning of an option for the option.
        ("--spec", "does not have"),
        ("--xyzzy", "does not have. Known to be safe: --attention-backend, "),
        ("--enable-trace-everything-else", "does not have"),
        ("--reasoning-parser", "not known to be safe for tokens, log-probs, versions and weights"),
    ],
)
def test_others_are_refused_with_their_nearest_relative(
    option: str, said: str, known: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=said.replace("?", "[?]", 1) if "mean" in said else said):
        check_arguments(KEY, [option], known)


def test_a_value_that_sglang_does_not_take_is_refused_in_its_words() -> None:
    recipe = make_recipe(Path("m"), serving={"extra_arguments": ["--page-size", "many"]})
    with pytest.raises(
        InputError, match=r"SGLang 0\.5\.23 says: argument --page-size: invalid int value: 'many'"
    ):
        check_options(recipe)


def test_nothing_is_asked_without_options_or_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_options, "ask_sglang", None)
    check_options(make_recipe(Path("m")))
    elsewhere = {"servers": ["http://h:1"], "extra_arguments": ["--page-size", "many"]}
    check_options(make_recipe(Path("m"), serving=elsewhere, evaluation={"num_servers": 0}))
