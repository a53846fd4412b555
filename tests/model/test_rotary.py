"""Rotary positions are read as config.json says them, or refused with what servers would do otherwise."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.model.rotary import LLAMA3_ROPE, Rotation, read_rotation, rotary_fields

FILE = Path("config.json")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def read(rope: dict[str, Any], **more: Any) -> Rotation:
    return read_rotation(FILE, rope, theta=1e4, head_size=64, **more)


def test_plain_positions_and_llama_3s_own_are_megatrons() -> None:
    plain = rotary_fields(read({"rope_theta": 5e5}))
    assert plain == {
        "rope_theta": 5e5,
        "rope_scaling_factor": None,
        "rotation": None,
        "sliding_rotation": None,
    }
    scaled = rotary_fields(read({"type": "llama3", "factor": 8, **LLAMA3_ROPE}))
    assert (scaled["rope_scaling_factor"], scaled["rotation"]) == (8.0, None)


def test_other_numbers_of_llama_3_are_a_rotation() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, **LLAMA3_ROPE, "low_freq_factor": 2.0}
    fields = rotary_fields(read(rope))
    assert fields["rope_scaling_factor"] is None
    assert dict(fields["rotation"].numbers)["low_freq_factor"] == 2.0


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_a_part_of_each_head_is_a_rotation(is_interleaved: bool) -> None:
    rotation = read({}, share=0.5, is_interleaved=is_interleaved)
    assert rotary_fields(rotation)["rotation"] == Rotation(1e4, share=0.5, is_interleaved=is_interleaved)


def test_layers_of_two_kinds_have_a_rotation_each_where_they_differ() -> None:
    usual, other = Rotation(1e6), Rotation(1e4)
    assert rotary_fields(usual, other)["sliding_rotation"] == other
    assert rotary_fields(usual, other)["rotation"] == usual
    assert rotary_fields(usual, usual)["rotation"] is None


def test_the_attention_factor_that_follows_from_the_factor_is_accepted() -> None:
    # As OLMo 3 writes it.
    read(YARN | {"factor": 8.0, "attention_factor": 1.2079441541679836})


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_type": "dynamic", "factor": 2.0},
            "the kinds that can are default, linear",
        ),
        ({"rope_type": "linear"}, "factor of rotary positions of kind linear is null"),
        ({"rope_type": "linear", "factor": -1.0}, "factor .* is -1.0, expected a number above 0"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor of rotary positions of kind llama3"),
        (YARN | {"attention_factor": 2.0}, r"attention_factor of yarn is 2.0; servers take 1.13863"),
        (YARN | {"mscale": 1.0}, "mscale 1.0 and mscale_all_dim null"),
    ],
)
def test_what_servers_would_compute_otherwise_is_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(rope)


LONGROPE = {
    "type": "longrope",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0 + i / 8 for i in range(24)],
    "long_factor": [1.0 + i for i in range(24)],
}


def read_long(**changes: Any) -> Rotation:
    return read(LONGROPE | changes, share=0.75, kinds=("default", "longrope"))


def test_yarn_is_read_with_an_untruncated_ramp() -> None:
    assert read(YARN).is_truncated and not read(YARN | {"truncate": False}).is_truncated


def test_longrope_is_its_short_factors_up_to_the_original_positions() -> None:
    rotation = read_long()
    assert rotation.factors == tuple(LONGROPE["short_factor"])
    assert rotation.max_positions() == 4096
    # The root of 1 + ln 32 / ln 4096.
    assert read_long(attention_factor=1.1902380714238083) == rotation


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_factor": 1.0}, "attention_factor of longrope is 1.0; servers take 1.19024"),
        ({"short_factor": [1.0] * 32}, "short_factor of longrope is .*, expected a list of 24 numbers"),
        ({"long_factor": None}, "long_factor of longrope is null, expected a list"),
        ({"short_factor": [0.0] * 24}, "short_factor of rotary positions of kind longrope is 0.0"),
        ({"type": "su"}, "kind 'su' cannot be trained; the kinds that can are default, longrope"),
    ],
)
def test_factors_of_longrope_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_long(**changes)


@pytest.mark.parametrize("share", [0.0, 0.02, 1.5, 0.55])
def test_a_share_that_leaves_no_pairs_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="partial_rotary_factor"):
        read({}, share=share)
