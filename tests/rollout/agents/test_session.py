"""Calls of agents become turns and branches, token by token, on a fake engine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, Refused, agents_on
from fakes.chat_codec import END

from asyncrl.records import Finish, Observed

ASKED = {"role": "user", "content": "Guess."}


def counted(text: str) -> str:
    """The n-th turn of a conversation says n."""
    return f" turn {text.count('<|im_start|>assistant')} {END}"


def said(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": message["content"]}


async def three_turns(client: Client) -> None:
    messages = [ASKED]
    for _ in range(3):
        messages += [said(await client.say(messages)), {"role": "user", "content": "lower"}]


async def test_a_conversation_is_one_trajectory_whose_replies_keep_their_tokens(tmp_path: Path) -> None:
    async with agents_on(tmp_path, three_turns, counted) as run:
        (trajectory,) = await run.play()
        turns = [run.codec.exact_text(turn) for turn in trajectory.turns()]
        assert turns == [f" turn {n} {END}" for n in (1, 2, 3)] and not trajectory.branches
        assert trajectory.finish is Finish.STOP and not run.group.scores
        observed = [part for part in trajectory.segments if isinstance(part, Observed)]
        assert run.codec.exact_text(observed[0].tokens) == (
            "\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\n"
        )
        messages = [ASKED]
        for n in (1, 2):
            messages += [
                {"role": "assistant", "content": f" turn {n} "},
                {"role": "user", "content": "lower"},
            ]
        assert run.codec.template is not None
        assert run.text(trajectory) == run.codec.template.render(messages) + f" turn 3 {END}"


async def test_white_space_that_an_agent_strips_does_not_branch(tmp_path: Path) -> None:
    async def strips(client: Client) -> None:
        first = await client.say([ASKED])
        content = [{"type": "text", "text": first["content"].strip()}]
        await client.say([ASKED, {"role": "assistant", "content": content, "refusal": None}, ASKED])

    async with agents_on(tmp_path, strips, counted) as run:
        (trajectory,) = await run.play()
        assert len(trajectory.turns()) == 2 and not trajectory.branches
        assert run.codec.exact_text(trajectory.turns()[0]) == f" turn 1 {END}"


async def test_a_changed_history_opens_a_branch_with_all_of_it_as_context(tmp_path: Path) -> None:
    async def changes(client: Client) -> None:
        await client.say([ASKED])
        await client.say([ASKED, {"role": "assistant", "content": "other"}, ASKED])

    async with agents_on(tmp_path, changes, counted) as run:
        (trajectory,) = await run.play()
        (branch,) = trajectory.branches
        assert branch.trajectory_id == "00000000-00.1" and "other" in run.text(branch)
        assert len(trajectory.turns()) == 1 and len(branch.turns()) == 1
        assert trajectory.answer_tokens() == branch.turn_tokens()


async def test_a_second_way_on_from_a_reply_has_its_sampled_tokens_as_context(tmp_path: Path) -> None:
    async def forks(client: Client) -> None:
        first = said(await client.say([ASKED]))
        for word in ("lower", "higher"):
            await client.say([ASKED, first, {"role": "user", "content": word}])

    async with agents_on(tmp_path, forks, counted) as run:
        (trajectory,) = await run.play()
        (branch,) = trajectory.branches
        first = trajectory.turns()[0]
        start = len(trajectory.prompt_tokens)
        assert branch.prompt_tokens[:start] == trajectory.prompt_tokens
        assert list(branch.prompt_tokens[start : start + len(first)]) == first
        assert "higher" in run.text(branch) and "lower" not in run.text(branch)
        assert run.queue.conservation()["generated"] == trajectory.num_sampled_in_all()


async def test_several_replies_and_calls_at_once_are_samples_of_their_own(tmp_path: Path) -> None:
    found: list[Any] = []

    async def asks(client: Client) -> None:
        found.append(await client.chat([ASKED], n=3))
        await asyncio.gather(*(client.say([ASKED]) for _ in range(2)))

    async with agents_on(tmp_path, asks, counted) as run:
        (trajectory,) = await run.play()
        assert [choice["index"] for choice in found[0]["choices"]] == [0, 1, 2]
        assert len(trajectory.lines()) == 5 and len(trajectory.calls) == 5
        assert {call.ordinal for call in trajectory.calls} == {0, 1, 2}


async def test_a_retry_gets_the_recorded_reply_while_it_is_sampled_and_after(tmp_path: Path) -> None:
    async with agents_on(tmp_path, three_turns, counted) as run:

        async def retries(client: Client) -> None:
            run.engine.hold()
            first = asyncio.create_task(client.chat([ASKED]))
            while run.engine.num_running == 0:
                await asyncio.sleep(0)
            again = asyncio.create_task(client.chat([ASKED], retry=1))
            run.engine.release()
            replies = [await first, await again, await client.chat([ASKED], retry=2)]
            assert replies[0] == replies[1] == replies[2]

        run.programs.agent = retries
        (trajectory,) = await run.play()
        assert not run.group.scores, run.group.scores
        assert len(run.engine.bodies) == 1 and len(trajectory.calls) == 1


async def test_a_client_that_went_away_finds_its_reply_when_it_asks_again(tmp_path: Path) -> None:
    async with agents_on(tmp_path, three_turns, counted) as run:

        async def leaves(client: Client) -> None:
            run.engine.hold()
            first = asyncio.create_task(client.chat([ASKED]))
            while run.engine.num_running == 0:
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            run.engine.release()
            await client.chat([ASKED], retry=1)

        run.programs.agent = leaves
        (trajectory,) = await run.play()
        assert not run.group.scores and len(trajectory.calls) == 1


TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


async def test_calls_of_tools_come_apart_and_their_results_continue_the_conversation(tmp_path: Path) -> None:
    def calls_first(text: str) -> str:
        if "<tool_response>" in text:
            return f"42{END}"
        return f'Let me see.\n<tool_call>\n{{"name": "add", "arguments": {{"a": 1}}}}\n</tool_call>{END}'

    async def uses_tool(client: Client) -> None:
        reply = (await client.chat([ASKED], tools=[TOOL], tool_choice="required"))["choices"][0]
        assert reply["finish_reason"] == "tool_calls"
        (call,) = reply["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert reply["message"]["content"] == "Let me see."
        result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
        last = await client.say([ASKED, reply["message"], result], tools=[TOOL])
        assert last["content"] == "42"

    async with agents_on(tmp_path, uses_tool, calls_first) as run:
        (trajectory,) = await run.play()
        assert not run.group.scores, run.group.scores
        assert len(trajectory.turns()) == 2 and not trajectory.branches
        assert "<tool_response>\n42\n</tool_response>" in run.text(trajectory)
        assert '"name": "add"' in run.codec.exact_text(list(trajectory.prompt_tokens))


async def test_a_call_ends_at_its_stop_string_and_at_the_smaller_of_its_limits(tmp_path: Path) -> None:
    found: list[Any] = []

    async def bounded(client: Client) -> None:
        found.append((await client.chat([ASKED], stop=["STOP"]))["choices"][0])
        body = {"max_tokens": 9, "max_completion_tokens": 4}
        found.append((await client.chat([ASKED], **body))["choices"][0])

    async with agents_on(tmp_path, bounded, lambda text: f"abc STOP behind{END}") as run:
        (trajectory,) = await run.play()
        assert [(c["message"]["content"], c["finish_reason"]) for c in found] == [
            ("abc ", "stop"),
            ("abc ", "length"),
        ]
        assert run.codec.exact_text(trajectory.turn_tokens()) == "abc STOP"
        assert len(trajectory.branches[0].turn_tokens()) == 4


async def test_a_reply_that_was_cut_off_is_closed_before_the_next_turn(tmp_path: Path) -> None:
    async def goes_on(client: Client) -> None:
        first = await client.say([ASKED], max_tokens=3)
        await client.say([ASKED, said(first), ASKED])

    async with agents_on(tmp_path, goes_on, lambda text: f"abcdef{END}") as run:
        (trajectory,) = await run.play()
        assert f"assistant\nabc{END}\n<|im_start|>user\nGuess." in run.text(trajectory)


async def test_calls_beyond_a_limit_are_refused_and_the_trajectory_ends_as_cut_off(tmp_path: Path) -> None:
    async with agents_on(tmp_path, three_turns, counted, max_calls=2) as run:
        (trajectory,) = await run.play()
        assert trajectory.finish is Finish.LENGTH and not run.group.scores
        assert len(trajectory.calls) == 2


@pytest.mark.parametrize("words", [{"content": "x" * 5000}, {"content": "x" * 3990}])
async def test_messages_that_fill_the_context_are_refused(tmp_path: Path, words: dict[str, str]) -> None:
    found: list[Refused] = []

    async def asks_long(client: Client) -> None:
        try:
            await client.say([{"role": "user", **words}])
        except Refused as refused:
            found.append(refused)

    async with agents_on(tmp_path, asks_long, counted) as run:
        (trajectory,) = await run.play()
        assert [(each.status, each.error["code"]) for each in found] == [(400, "context_length_exceeded")]
        assert trajectory.finish is Finish.LENGTH and not trajectory.segments and not run.group.scores
