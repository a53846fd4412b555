"""SGLang's JSON to our types and back; events as SGLang 0.5.23 sent them."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from fakes.streamed import event

from asyncrl.errors import ServerError
from asyncrl.records import Finish, SamplingParams, Segment
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.sglang.messages import Chunk, Prefix, Span, generate_body, parse_event

SAMPLING = SamplingParams(0.7, 64, (1, 2))


def test_a_group_is_one_request_with_an_id_and_a_budget_per_trajectory() -> None:
    body = generate_body([Prefix("a", [1, 2], 10), Prefix("b", [1, 2, 3], 9)], SAMPLING, salt="run-v3")
    assert body["rid"] == ["a", "b"]
    assert body["input_ids"] == [[1, 2], [1, 2, 3]]
    assert [p["max_new_tokens"] for p in body["sampling_params"]] == [10, 9]
    assert body["sampling_params"][0]["temperature"] == 0.7
    assert body["cache_salt"] == ["run-v3", "run-v3"]
    assert body["stream"] and body["return_logprob"]


def test_what_cuts_the_distribution_is_sent_where_it_is_set_and_to_no_greedy_request() -> None:
    cut = dataclasses.replace(SAMPLING, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1)
    prefixes = [Prefix("a", [1], 10), Prefix("b", [1], 10, is_greedy=True)]
    sampled, greedy = generate_body(prefixes, cut, salt="s")["sampling_params"]
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    assert [sampled[name] for name in names] == [0.9, 20, 0.05, 1.1]
    assert [greedy.get(name) for name in names] == [1.0, -1, None, 1.1] and greedy["temperature"] == 0.0
    (plain,) = generate_body(prefixes[:1], SAMPLING, salt="s")["sampling_params"]
    assert plain.keys() == sampled.keys() - {"min_p", "repetition_penalty"}


def test_a_middle_chunk_has_tokens_logprobs_and_spans() -> None:
    parsed = parse_event(event(weight_versions=[{"version": "3", "start": 0, "end": 2}]))
    assert parsed == Chunk("r1", [5, 6], [-0.5, -0.5], [Span(3, 0, 2)], None)


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", Finish.STOP), ("length", Finish.LENGTH), ("abort", None)]
)
def test_a_last_chunk_says_why_it_ended(reason: str, finish: Finish | None) -> None:
    parsed = parse_event(event(finish_reason={"type": reason, "matched": 1}, weight_versions=[]))
    assert parsed.end is not None
    assert parsed.end.finish() == finish


def test_a_missing_logprob_becomes_nan_so_that_the_trainer_masks_its_token() -> None:
    parsed = parse_event(event(tokens=[5], output_token_logprobs=[[None, 5, None]]))
    assert math.isnan(parsed.behavior_logprobs[0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"not json", "not JSON"),
        (b'{"error": {"message": "out of memory"}}', "out of memory"),
        (event(output_token_logprobs=[]), "incremental-streaming-output"),
        (event(weight_versions=[{"version": "default", "start": 0, "end": 2}]), "default"),
        (event(finish_reason={"type": "error", "message": "boom"}), "boom"),
    ],
)
def test_a_reply_that_does_not_fit_is_an_error_that_quotes_it(data: bytes, said: str) -> None:
    with pytest.raises(ServerError, match=said):
        parse_event(data)


def test_a_token_that_an_abort_cut_off_from_its_log_prob_never_was() -> None:
    # SGLang 0.5.23, abort_request between a forward pass and its output: counted, with a log-prob, not sent.
    spans = [{"version": "3", "start": 0, "end": 3}]
    late = {
        "output_token_logprobs": [[-0.5, 5, None], [-0.5, 6, None], [-0.7, 9, None]],
        "completion_tokens": 3,
        "weight_versions": spans,
    }
    parsed = parse_event(event(finish_reason={"type": "abort"}, **late))
    assert (parsed.tokens, parsed.behavior_logprobs) == ([5, 6], [-0.5, -0.5])
    assert Confirmation(3).feed(parsed) == [Segment(3, [5, 6], [-0.5, -0.5])]
    with pytest.raises(ServerError, match="2 tokens arrived, the server sent 6"):
        Confirmation(3).feed(
            parse_event(event(finish_reason={"type": "abort"}, **late | {"completion_tokens": 7}))
        )
    with pytest.raises(ServerError, match="2 tokens but 3 log-probs"):
        parse_event(event(finish_reason={"type": "stop"}, **late))
    late["output_token_logprobs"] = [[-0.5, 9, None], [-0.5, 5, None], [-0.7, 6, None]]
    with pytest.raises(ServerError, match="2 tokens but 3 log-probs"):
        parse_event(event(finish_reason={"type": "abort"}, **late))


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parents[1] / "engine" / "recorded" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["stream_stop_and_length", "stream_abort", "stream_across_update"])
def test_every_token_that_a_real_server_streamed_is_confirmed_once_and_in_order(name: str) -> None:
    reply = recorded(name)
    confirmations = {rid: Confirmation(salt_version=0) for rid in reply["request"]["rid"]}
    tokens: dict[str, list[int]] = {rid: [] for rid in confirmations}
    versions: dict[str, list[int]] = {rid: [] for rid in confirmations}
    ends = {}
    for raw in reply["events"]:
        parsed = parse_event(json.dumps(raw).encode())
        for segment in confirmations[parsed.request_id].feed(parsed):
            tokens[parsed.request_id].extend(segment.tokens)
            versions[parsed.request_id].extend([segment.version] * len(segment.tokens))
        if parsed.end is not None:
            ends[parsed.request_id] = parsed.end
    for rid, found in tokens.items():
        mine = [raw for raw in reply["events"] if raw["meta_info"]["id"] == rid]
        assert found == [token for raw in mine for token in raw["output_ids"]]
    assert all(found == sorted(found) for found in versions.values())
    assert ends.keys() == tokens.keys()
    if name == "stream_across_update":
        assert any(len(set(found)) == 2 for found in versions.values())


def test_a_refusal_inside_a_stream_is_quoted() -> None:
    data = recorded("stream_refused")["reply"].strip().removeprefix("data: ").partition("\n")[0]
    with pytest.raises(ServerError, match="maximum context length"):
        parse_event(data.encode())


def test_a_refusal_is_quoted_though_it_brings_a_token_without_a_log_prob() -> None:
    reason = {"type": "abort", "message": "Input length is too long", "status_code": 400}
    with pytest.raises(ServerError, match="r1 was refused: Input length"):
        parse_event(event(finish_reason=reason, tokens=[0], output_token_logprobs=[]))
