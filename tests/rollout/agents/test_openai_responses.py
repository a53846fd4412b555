"""OpenAI's own client speaks Responses to the endpoint: with and without streams, function calls, errors."""

from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, agents_on, outcome_of
from fakes.chat_codec import END

TOOL = {
    "type": "function",
    "name": "multiply",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
ASKED: dict[str, Any] = {"model": "any", "input": "6 times 7?"}


def answers(text: str) -> str:
    if '"type": "function"' in text and "<tool_response>" not in text:
        return f'<tool_call>\n{{"name": "multiply", "arguments": {{"a": 6, "b": 7}}}}\n</tool_call>{END}'
    return f"It is 42.{END}"


async def test_it_reads_responses_streams_function_calls_and_errors(tmp_path: Path) -> None:
    pytest.importorskip("jiter", reason="make setup AGENTS=1")
    # Takes a second, which every process of a run of tests would pay.
    import openai

    async def asks(client: Client) -> None:
        access = {"base_url": client.access.base_url, "api_key": client.access.api_key}
        async with openai.AsyncOpenAI(**access) as speaker:
            responses = speaker.responses
            whole = await responses.create(
                **ASKED, instructions="Be brief.", include=["message.output_text.logprobs"]
            )
            assert whole.output_text == "It is 42." and whole.status == "completed"
            logprobs = whole.output[0].content[0].logprobs
            assert len(logprobs) == whole.usage.output_tokens and logprobs[-1].token == END
            async with responses.stream(**ASKED) as stream:
                events = [event async for event in stream]
                ended = await stream.get_final_response()
            parts = [event.delta for event in events if event.type == "response.output_text.delta"]
            assert "".join(parts) == ended.output_text == "It is 42." and len(parts) > 1
            assert [event.sequence_number for event in events] == list(range(len(events)))
            cut = await responses.create(**ASKED, max_output_tokens=5)
            assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"

            called = await responses.create(**ASKED, tools=[TOOL], tool_choice="required")
            async with responses.stream(**ASKED, tools=[TOOL]) as stream:
                streamed = await stream.get_final_response()
            for found in (called, streamed):
                (call,) = found.output
                assert (call.name, call.arguments) == ("multiply", '{"a": 6, "b": 7}')
            result = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "42"}
            user = {"role": "user", "content": [{"type": "input_text", "text": "6 times 7?"}]}
            turns = [user, *called.output, result]
            last = await responses.create(model="any", input=turns, tools=[TOOL])
            more = [*turns, *last.output, {"role": "user", "content": "Sure?"}]
            assert (await responses.create(model="any", input=more, tools=[TOOL])).output_text == "It is 42."

            with pytest.raises(openai.BadRequestError, match=r"text.format constrains"):
                await responses.create(**ASKED, text={"format": {"type": "json_object"}})
            with pytest.raises(openai.NotFoundError, match="is not served"):
                await responses.retrieve("resp_1")
            with pytest.raises(openai.AuthenticationError):
                await responses.create(**ASKED, extra_headers={"Authorization": "Bearer sk-other"})

    async with agents_on(tmp_path, asks, answers, timeout_seconds=600.0) as run:
        (trajectory,) = await run.play()
        assert not run.group.scores, run.group.scores
        # The call of a function and what follows it are one conversation.
        lines = [trajectory, *trajectory.branches]
        assert sorted(len(line.turns()) for line in lines) == [1, 1, 1, 1, 3]


async def test_a_stream_that_cannot_end_says_so_in_an_event_of_errors(tmp_path: Path) -> None:
    pytest.importorskip("jiter", reason="make setup AGENTS=1")
    import openai

    async def asks(client: Client) -> None:
        access = {"base_url": client.access.base_url, "api_key": client.access.api_key}
        async with openai.AsyncOpenAI(**access) as speaker:
            with pytest.raises(openai.APIError, match="has ended"):
                async for event in await speaker.responses.create(**ASKED, stream=True):
                    if event.type == "response.output_text.delta":
                        (session,) = run.player.recorder.sessions.values()
                        await session.stop()  # type: ignore[attr-defined]

    async with agents_on(tmp_path, asks, answers) as run:
        await run.play()
        assert not run.group.scores, run.group.scores


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "input must be text or a list"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "the type 'item_reference'"),
        ({"input": ["text"]}, "the type None"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "takes text alone"),
        ({**ASKED, "tools": [{"type": "web_search"}]}, "the type 'web_search'"),
        ({**ASKED, "include": 3}, "include must be a list"),
        ({**ASKED, "max_output_tokens": 0}, "max_output_tokens is 0"),
        ({**ASKED, "previous_response_id": "resp_1"}, "Give the whole conversation in input"),
        ({**ASKED, "top_logprobs": 3}, "top_logprobs is not served"),
    ],
)
async def test_what_cannot_be_asked_is_refused_in_a_sentence(
    body: dict[str, Any], words: str, tmp_path: Path
) -> None:
    refused, _ = await outcome_of(tmp_path, lambda client: client.ask("POST", "/responses", body), answers)
    assert refused.status == 400 and words in refused.error["message"]
