"""Anthropic's own client, untouched, against the endpoint: messages, streams, tools, counts, errors."""

from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, agents_on, outcome_of
from fakes.chat_codec import END

TOOL = {
    "name": "multiply",
    "description": "Multiplies.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
ASKED: dict[str, Any] = {
    "model": "any",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "6 times 7?"}],
}


def answers(text: str) -> str:
    if '"type": "function"' in text and "<tool_response>" not in text:
        return (
            f'Well.\n<tool_call>\n{{"name": "multiply", "arguments": {{"a": 6, "b": 7}}}}\n</tool_call>{END}'
        )
    return f"It is 42, STOPs not.{END}"


@pytest.mark.exhaustive
async def test_it_reads_messages_streams_uses_of_tools_counts_and_errors(tmp_path: Path) -> None:
    anthropic = pytest.importorskip("anthropic", reason="make setup AGENTS=1")

    async def asks(client: Client) -> None:
        url = client.access.base_url.removesuffix("/v1")
        access = {"base_url": url, "api_key": client.access.api_key}
        async with anthropic.AsyncAnthropic(**access) as speaker:
            messages = speaker.messages
            whole = await messages.create(**ASKED, system=[{"type": "text", "text": "Be brief."}])
            assert [block.text for block in whole.content] == ["It is 42, STOPs not."]
            assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
            count = await messages.count_tokens(model="any", messages=ASKED["messages"], system="Be brief.")
            assert count.input_tokens == whole.usage.input_tokens

            async with messages.stream(**ASKED, stop_sequences=["STOP"]) as stream:
                parts = [part async for part in stream.text_stream]
                ended = await stream.get_final_message()
            assert "".join(parts) == ended.content[0].text == "It is 42, " and len(parts) > 1
            assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", "STOP")
            count = await messages.count_tokens(model="any", messages=ASKED["messages"])
            assert count.input_tokens == ended.usage.input_tokens != whole.usage.input_tokens
            cut = await messages.create(**{**ASKED, "max_tokens": 5})
            assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 5

            called = await messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "any"})
            async with messages.stream(**ASKED, tools=[TOOL]) as stream:
                streamed = await stream.get_final_message()
            for found in (called, streamed):
                said, use = found.content
                assert (said.text, use.name, use.input) == ("Well.", "multiply", {"a": 6, "b": 7})
                assert found.stop_reason == "tool_use"
            result = {"type": "tool_result", "tool_use_id": called.content[1].id, "content": "42"}
            turns = [
                *ASKED["messages"],
                {"role": "assistant", "content": called.content},
                {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
            ]
            last = await messages.create(**{**ASKED, "messages": turns}, tools=[TOOL])
            assert last.content[0].text == "It is 42, STOPs not."

            with pytest.raises(
                anthropic.BadRequestError, match=r"output_config.format constrains"
            ) as refused:
                await messages.create(
                    **ASKED, output_config={"format": {"type": "json_schema", "schema": {}}}
                )
            assert refused.value.body["error"]["type"] == "invalid_request_error"
            with pytest.raises(anthropic.NotFoundError, match="is not served"):
                await speaker.get("/v1/messages/batches", cast_to=object)
            with pytest.raises(anthropic.AuthenticationError):
                await speaker.copy(api_key="sk-other").messages.create(**ASKED)

    async with agents_on(tmp_path, asks, answers, timeout_seconds=600.0) as run:
        (trajectory,) = await run.play()
        assert not run.group.scores, run.group.scores
        # A call of a tool and what follows it are one conversation; each other call is one of its own.
        lines = [trajectory, *trajectory.branches]
        assert sorted(len(line.turns()) for line in lines) == [1, 1, 1, 1, 2]
        (continued,) = [line for line in lines if len(line.turns()) == 2]
        assert "So?" in run.text(continued) and run.text(continued).count("<tool_call>") == 1


@pytest.mark.exhaustive
async def test_a_stream_that_cannot_end_says_so_in_an_event_of_errors(tmp_path: Path) -> None:
    anthropic = pytest.importorskip("anthropic", reason="make setup AGENTS=1")

    async def asks(client: Client) -> None:
        url = client.access.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=url, api_key=client.access.api_key) as speaker:
            async with speaker.messages.stream(**ASKED) as stream:
                async for event in stream:
                    if event.type == "text":
                        (session,) = run.player.recorder.sessions.values()
                        await session.stop()  # type: ignore[attr-defined]
                        break
                with pytest.raises(anthropic.APIStatusError, match="has ended"):
                    await stream.until_done()

    async with agents_on(tmp_path, asks, answers) as run:
        await run.play()
        assert not run.group.scores, run.group.scores


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": 3}, "messages must be a list"),
        ({"messages": [{"role": "judge", "content": ""}]}, "messages[0] must be an object with the role"),
        ({"messages": [{"role": "user", "content": 7}]}, "must be text or a list of blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "the type 'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "in the role 'user'"),
        (
            {**ASKED, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools with an input_schema",
        ),
        ({**ASKED, "tools": 3}, "tools must be a list"),
        ({**ASKED, "max_tokens": 0}, "max_tokens is 0"),
        ({**ASKED, "mcp_servers": [{}]}, "mcp_servers is not served"),
        (
            {**ASKED, "messages": [*ASKED["messages"], {"role": "assistant", "content": "{"}]},
            "does not continue",
        ),
    ],
)
async def test_what_cannot_be_asked_is_refused_in_a_sentence(
    body: dict[str, Any], words: str, tmp_path: Path
) -> None:
    refused, _ = await outcome_of(tmp_path, lambda client: client.ask("POST", "/messages", body), answers)
    assert refused.status == 400 and refused.error["type"] == "invalid_request_error"
    assert words in refused.error["message"]
