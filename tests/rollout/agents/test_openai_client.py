"""OpenAI's own client, untouched, against the endpoint: with and without streams, tools, several replies.

The slow test plays it, and an agent of the library smolagents, on a real SGLang server.
"""

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
LONG_CONTEXT = 16_000
SMALL: dict[str, Any] = {"model": "any", "max_tokens": 8}


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
                await speaker.responses.create(model="any", input="6 times 7?")
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


@pytest.mark.slow
async def test_it_and_an_agent_library_play_on_a_real_server(tmp_path: Path) -> None:
    pytest.importorskip("smolagents", reason="make setup AGENTS=1")
    import openai
    from controller.test_agents import EXAMPLES, play
    from fakes.models import write_model
    from serving.engine.servers import running_server

    from asyncrl.recipe import Agent

    async def asks(client: Client) -> None:
        access = {"base_url": client.access.base_url, "api_key": client.access.api_key}
        async with openai.AsyncOpenAI(**access) as speaker:
            chat = speaker.chat.completions
            two = (await chat.create(**SMALL, messages=[USER], n=2, tools=[TOOL])).choices
            assert len(two) == 2 and two[0].finish_reason in ("length", "stop", "tool_calls")
            messages = [USER, two[0].message.model_dump(), {"role": "user", "content": "Sure?"}]
            stream = await chat.create(**SMALL, messages=messages, tools=[TOOL], stream=True)
            assert [part.choices[0].finish_reason async for part in stream][-1] is not None

        def at_once() -> int:
            with openai.OpenAI(**access) as speaker:
                return speaker.chat.completions.create(**SMALL, messages=[USER]).usage.completion_tokens

        assert 1 <= await asyncio.to_thread(at_once) <= 8

    async with agents_on(tmp_path / "codec_only", asks, answers) as made:
        num_tokens = 1 + max(made.codec.stop_token_ids) + 8
    folder = tmp_path / "codec"
    write_model(folder, vocab_size=num_tokens, max_position_embeddings=LONG_CONTEXT)
    with running_server(folder, tmp_path / "server.log", max_running_requests=8) as (url, _):
        settings: dict[str, Any] = {"server": url, "context_tokens": LONG_CONTEXT, "max_new_tokens": 200}
        async with agents_on(tmp_path, asks, answers, **settings) as run:
            (trajectory,) = await run.play()
            assert not run.group.scores, run.group.scores
            assert not run.engine.bodies
            assert sorted(len(line.turns()) for line in (trajectory, *trajectory.branches)) == [1, 1, 2]
        (tmp_path / "library").mkdir()
        (tmp_path / "library" / "codec").symlink_to(folder)
        async with agents_on(tmp_path / "library", asks, answers, **settings) as run:
            run.player.recorder.generator.limits.max_turn_tokens = 8
            group = await play(Agent(command=["python", "agent_smolagents.py"]), EXAMPLES, run)
            (trajectory,) = group.trajectories
            # What a model of random weights says is no call: it is told so until its steps are used up.
            assert not group.scores, group.scores
            assert sum(len(line.turns()) for line in (trajectory, *trajectory.branches)) >= 4
