"""OpenAI's own client, untouched, against the endpoint: with and without streams, tools, several replies."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, agents_on
from fakes.chat_codec import END

pytest.importorskip("jiter", reason="make setup AGENTS=1")

USER = {"role": "user", "content": "6 times 7?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


def answers(text: str) -> str:
    if '"type": "function"' in text and "<tool_response>" not in text:
        return f'<tool_call>\n{{"name": "multiply", "arguments": {{"a": 6, "b": 7}}}}\n</tool_call>{END}'
    return f"It is 42.{END}"


async def test_it_reads_replies_streams_calls_of_tools_and_errors(tmp_path: Path) -> None:
    # Takes a second, which every process of a run of tests would pay.
    import openai

    async def asks(client: Client) -> None:
        asked: dict[str, Any] = {"model": "any", "messages": [USER]}
        access = {"base_url": client.access.base_url, "api_key": client.access.api_key}
        async with openai.AsyncOpenAI(**access) as speaker:
            chat = speaker.chat.completions
            assert [model.id async for model in speaker.models.list()] == ["tiny"]
            whole = await chat.create(**asked, n=2, logprobs=True)
            assert [choice.message.content for choice in whole.choices] == ["It is 42."] * 2
            assert whole.choices[0].logprobs.content[-1].token == END
            stream = await chat.create(**asked, stream=True, stream_options={"include_usage": True})
            parts = [part async for part in stream]
            assert "".join(c.delta.content or "" for part in parts for c in part.choices) == "It is 42."
            assert parts[-1].usage == whole.usage.model_copy(
                update={"completion_tokens": 10, "total_tokens": whole.usage.prompt_tokens + 10}
            )
            called = await chat.create(**asked, tools=[TOOL], tool_choice="required")
            (call,) = called.choices[0].message.tool_calls
            assert (call.function.name, call.function.arguments) == ("multiply", '{"a": 6, "b": 7}')
            result = {"role": "tool", "tool_call_id": call.id, "content": "42"}
            turns = [USER, called.choices[0].message.model_dump(), result]
            last = await chat.create(model="any", messages=turns, tools=[TOOL])
            assert last.choices[0].message.content == "It is 42."
            with pytest.raises(openai.BadRequestError, match="response_format constrains"):
                await chat.create(**asked, response_format={"type": "json_object"})
            with pytest.raises(openai.NotFoundError, match="is not served"):
                await speaker.embeddings.create(model="any", input="6 times 7?")
            with pytest.raises(openai.AuthenticationError):
                await chat.create(**asked, extra_headers={"Authorization": "Bearer sk-other"})

        def at_once() -> str | None:
            with openai.OpenAI(**access) as speaker:
                return speaker.chat.completions.create(**asked).choices[0].message.content

        assert await asyncio.to_thread(at_once) == "It is 42."

    async with agents_on(tmp_path, asks, answers) as run:
        (trajectory,) = await run.play()
        assert not run.group.scores, run.group.scores
        # Two replies, a stream and the thread's are conversations of their own; the call of a tool and what
        # follows it are one.
        lines = [trajectory, *trajectory.branches]
        assert sorted(len(line.turns()) for line in lines) == [1, 1, 1, 1, 2]
