"""Columns that servers send with tokens: read, checked, and asked for where a recipe needs them."""

from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.streamed import event

from asyncrl.errors import ServerError
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES, pack_kept_set
from asyncrl.records import SamplingParams, Segment
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.sglang.columns import KeptSets, Routes, served_columns
from asyncrl.serving.sglang.messages import Prefix, generate_body, parse_event

KEPT, ROUTED = (KeptSets(),), (Routes(2),)
SAMPLING = SamplingParams(0.7, 64, (1, 2))


def test_log_probs_over_kept_sets_take_the_place_of_those_over_all_tokens() -> None:
    spans = [{"version": "3", "start": 0, "end": 2}]
    kept = {
        "output_token_sampling_mask": [[9, 5], [6]],
        "output_token_sampling_logprobs": [-0.25, 0.0],
        "output_token_sampling_mask_length": 2,
    }
    parsed = parse_event(event(weight_versions=spans, **kept), KEPT)
    packed = [pack_kept_set(5, [5, 9]), pack_kept_set(6, [6])]
    assert (parsed.behavior_logprobs, parsed.columns[KEPT_SETS]) == ([-0.25, 0.0], packed)
    assert Confirmation(3, columns=KEPT).feed(parsed) == [
        Segment(3, [5, 6], [-0.25, 0.0], columns={KEPT_SETS: bytearray(b"".join(packed))})
    ]
    # What an abort cut off is cut off from all lists.
    late = {
        "output_token_logprobs": [[-0.5, 5, None], [-0.5, 6, None], [-0.7, 9, None]],
        "output_token_sampling_mask": [[9, 5], [6], [9]],
        "output_token_sampling_logprobs": [-0.25, 0.0, 0.0],
    }
    aborted = parse_event(event(finish_reason={"type": "abort"}, **late), KEPT)
    assert (aborted.behavior_logprobs, aborted.columns[KEPT_SETS]) == ([-0.25, 0.0], packed)


@pytest.mark.parametrize(
    ("masks", "logprobs", "said"),
    [
        ([[5], [7]], [0.0, 0.0], "the token 6 is not among the 1 kept ids"),
        ([[5]], [0.0, 0.0], "2 tokens but 1 kept sets and 2 log-probs"),
        ([[5], [6]], [0.0], "2 tokens but 2 kept sets and 1 log-probs"),
        ([[5], [6, 6]], [0.0, 0.0], "hold one twice"),
    ],
)
def test_kept_sets_that_do_not_fit_their_tokens_are_an_error(
    masks: list[list[int]], logprobs: list[float], said: str
) -> None:
    kept = {"output_token_sampling_mask": masks, "output_token_sampling_logprobs": logprobs}
    with pytest.raises(ServerError, match=said):
        parse_event(event(**kept), KEPT)


def test_kept_sets_are_asked_for_of_sampled_requests_alone() -> None:
    prefixes = [Prefix("a", [1], 10), Prefix("b", [1], 10, is_greedy=True)]
    asked = generate_body(prefixes, SAMPLING, salt="s", columns=KEPT)
    assert asked["return_sampling_mask"] == [True, False]
    assert "return_sampling_mask" not in generate_body(prefixes, SAMPLING, salt="s")


def test_routes_come_with_their_tokens_the_first_ones_behind_those_of_the_context() -> None:
    # A prompt of three tokens: rows of two bytes for its first two, then one for each sampled token.
    confirmation = Confirmation(3, columns=ROUTED, num_context=2)
    unconfirmed = parse_event(event(routed_experts="YWFiYmNjZGQ=", weight_versions=None), ROUTED)
    assert confirmation.feed(unconfirmed) == []
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}]
    last = parse_event(event(tokens=[7], routed_experts="ZWU=", weight_versions=spans), ROUTED)
    first, second = confirmation.feed(last)
    assert (first.context, first.columns) == ({ROUTES: b"aabb"}, {ROUTES: b"cc"})
    assert (second.context, second.columns) == ({}, {ROUTES: b"ddee"})
    assert confirmation.feed(parse_event(event(tokens=[], weight_versions=spans), ROUTED)) == []


@pytest.mark.parametrize("routes", ["", "YWFiYmNj"])
def test_tokens_without_all_of_their_routes_are_an_error(routes: str) -> None:
    parsed = parse_event(event(routed_experts=routes), ROUTED)
    with pytest.raises(ServerError, match="2 tokens came with . rows of routes, expected 4 "):
        Confirmation(3, columns=ROUTED, num_context=2).feed(parsed)
    with pytest.raises(ServerError, match="not base64"):
        parse_event(event(routed_experts="no!"), ROUTED)
    with pytest.raises(ServerError, match="3 bytes of routes are no rows of 2"):
        parse_event(event(routed_experts="YWFi"), ROUTED)


def test_routes_are_asked_for_from_each_prefix_s_first_row_on() -> None:
    prefixes = [Prefix("a", [1, 2], 10), Prefix("b", [1, 2, 3, 4], 10, num_computed=3)]
    asked = generate_body(prefixes, SAMPLING, salt="s", columns=ROUTED)
    assert asked["return_routed_experts"] is True
    rows = [params["custom_params"] for params in asked["sampling_params"]]
    assert rows == [{"asyncrl_first_row": 0}, {"asyncrl_first_row": 3}]
    plain = generate_body(prefixes, SAMPLING, salt="s")
    assert "return_routed_experts" not in plain and "custom_params" not in plain["sampling_params"][0]


def test_a_recipe_asks_for_the_columns_that_its_trainer_reads(tmp_path: Path) -> None:
    assert served_columns(make_recipe(tmp_path)) == ()
    assert served_columns(make_recipe(tmp_path, rollout={"top_k": 20})) == KEPT
