"""The endpoint speaks OpenAI's protocol: keys, streams, log-probs, and errors in its shape."""

import functools
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, Refused, agents_on, outcome_of
from fakes.chat_codec import END

ASKED = {"role": "user", "content": "Guess."}


def answer(text: str) -> str:
    return f"It is ë, STOPs not{END}"


outcome = functools.partial(outcome_of, answer=answer)


async def test_a_completion_has_log_probs_and_usage_of_the_sampled_tokens(tmp_path: Path) -> None:
    found, run = await outcome(tmp_path, lambda client: client.chat([ASKED], logprobs=True))
    (choice,) = found["choices"]
    (trajectory,) = run.group.trajectories
    tokens = choice["logprobs"]["content"]
    assert len(tokens) == len(trajectory.turn_tokens()) == found["usage"]["completion_tokens"]
    assert found["usage"]["prompt_tokens"] == len(trajectory.prompt_tokens)
    assert {token["logprob"] for token in tokens} == {-0.5} and tokens[-1]["token"] == END
    assert found["object"] == "chat.completion" and found["model"] == "any"
    assert choice["message"] == {"role": "assistant", "content": "It is ë, STOPs not", "refusal": None}


@pytest.mark.parametrize("stop", [None, "STOP"])
async def test_a_stream_says_what_the_whole_reply_says_as_it_is_sampled(
    tmp_path: Path, stop: str | None
) -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "stop": stop, "n": 2}
    events, _ = await outcome(tmp_path, lambda client: client.chat([ASKED], **body))
    for index in (0, 1):
        choices = [c for event in events for c in event["choices"] if c["index"] == index]
        parts = [choice["delta"].get("content", "") for choice in choices]
        assert "".join(parts) == ("It is ë, " if stop else "It is ë, STOPs not") and len(parts) > 3
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
        assert not any("\ufffd" in part for part in parts)
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


async def test_calls_of_tools_come_whole_in_a_stream(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    events, _ = await outcome_of(
        tmp_path,
        lambda client: client.chat([ASKED], tools=[tool], stream=True),
        lambda text: f'<tool_call>\n{{"name": "add", "arguments": {{}}}}\n</tool_call>{END}',
    )
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    (called,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert called[0]["index"] == 0 and called[0]["function"] == {"name": "add", "arguments": "{}"}
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("key", ["", "sk-of-another"])
async def test_a_missing_or_foreign_key_gets_401(tmp_path: Path, key: str) -> None:
    body = {"messages": [ASKED]}
    refused, run = await outcome(
        tmp_path, lambda client: client.ask("POST", "/chat/completions", body, key=key)
    )
    assert refused.status == 401 and refused.error["code"] == "invalid_api_key"
    assert not run.engine.bodies


async def test_the_key_of_a_trajectory_that_ended_gets_401(tmp_path: Path) -> None:
    clients: list[Client] = []

    async def agent(client: Client) -> None:
        clients.append(client)
        await client.say([ASKED])

    async with agents_on(tmp_path, agent, answer, samples=2) as run:
        await run.play()
        assert len(set(run.programs.keys)) == 2
        for client in clients:
            with pytest.raises(Refused, match="401"):
                await client.say([ASKED])


async def test_models_are_listed_and_other_paths_are_404_in_openais_shape(tmp_path: Path) -> None:
    found, _ = await outcome(tmp_path / "a", lambda client: client.ask("GET", "/models"))
    assert [model["id"] for model in found["data"]] == ["tiny"]
    refused, _ = await outcome(tmp_path / "b", lambda client: client.ask("POST", "/embeddings", {}))
    assert refused.status == 404 and "/v1/chat/completions" in refused.error["message"]


NOT_FORMATS = ("logit_bias", "top_logprobs", "functions", "function_call")
"""Fields that are refused for another reason than that they constrain the form of a response."""


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"guided_regex": "a*"}, "guided_regex"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"top_logprobs": 3, "logprobs": True}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages[0]"),
        ({"messages": [ASKED, {"role": "assistant", "content": "It"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ],
    ids=str,
)
async def test_what_is_not_served_is_refused_with_400_before_anything_is_sampled(
    tmp_path: Path, body: dict[str, Any], param: str
) -> None:
    asked = {"messages": [ASKED]} | body
    refused, run = await outcome(tmp_path, lambda client: client.ask("POST", "/chat/completions", asked))
    assert refused.status == 400 and refused.error["param"] == param
    assert refused.error["type"] == "invalid_request_error"
    assert param not in NOT_FORMATS or "format" not in refused.error["message"]
    assert not run.engine.bodies and not run.group.trajectories[0].calls


async def test_the_recipes_sampling_overrides_a_calls_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(client: Client) -> None:
        for _ in range(2):
            await client.say([ASKED], temperature=0.2, top_p=0.9, seed=7, response_format={"type": "text"})

    _, run = await outcome(tmp_path, ask)
    params = [each for body in run.engine.bodies for each in body["sampling_params"]]
    assert {each["temperature"] for each in params} == {1.0}
    told = [record.getMessage() for record in caplog.records if "an agent asks" in record.getMessage()]
    assert len(told) == 3 and any("temperature" in line for line in told)
