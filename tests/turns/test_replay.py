"""Each part of a conversation recovers by itself: whatever is lost when, it continues as if nothing had been,
or is a fault."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.turns.calls import Call, CallResult
from asyncrl.turns.environment import End, Message, Observation, Recovery
from asyncrl.turns.episode import (
    EnvironmentFault,
    RecordedTurn,
    Recoveries,
    bring_back,
    lost_part,
    reply_messages,
    result_messages,
)

LATE = "late"
"""The argument of a call that ends the process, and with it the state of all tools."""
TOOLS = ("kept", "plain", "odd")


class Counting:
    """Says how often it was asked, but for parts that are stateless."""

    def __init__(self, recoveries: Recoveries) -> None:
        self.recoveries = recoveries
        self.asked: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    async def start(self, row: Mapping[str, Any]) -> list[Message] | None:
        return None

    async def step(self, text: str) -> Observation | End:
        return Observation(self._count("environment", self.recoveries.environment))

    async def call(self, calls: Sequence[Call]) -> list[CallResult]:
        results: list[CallResult] = []
        for call in calls:
            if results and results[-1].has_lost:
                results.append(CallResult(call.name, "not called", is_error=True, has_lost=True))
            elif call.error or call.name not in self.recoveries.tools:
                results.append(CallResult(call.name, "no such call", is_error=True))
            else:
                output = self._count(call.name, self.recoveries.tools[call.name])
                has_lost = call.arguments == {"do": LATE}
                if has_lost:
                    output = "late"
                    for name in TOOLS:
                        self._counts[name] = 0
                results.append(CallResult(call.name, output, has_lost=has_lost))
        return results

    async def close(self) -> None:
        pass

    def _count(self, name: str, recovery: Recovery) -> str:
        self.asked[name] += 1
        self._counts[name] += recovery is not Recovery.STATELESS
        return f"{name} {self._counts[name]}"


Turn = list[Call] | None


async def play(episode: Counting, turn: Turn) -> RecordedTurn:
    if turn is None:
        reply = await episode.step("text")
        assert isinstance(reply, Observation)
        return RecordedTurn("text", reply_messages(reply))
    results = await episode.call(turn)
    losses = [place for place, result in enumerate(results) if result.has_lost]
    return RecordedTurn("text", result_messages(results), turn, losses)


CALLS = st.builds(
    Call,
    st.sampled_from([*TOOLS, "unknown"]),
    st.sampled_from([{}, {}, {}, {"do": LATE}]),
    st.sampled_from(["", "", "", "no JSON"]),
)
TURNS = st.lists(st.one_of(st.none(), st.lists(CALLS, min_size=1, max_size=3)), min_size=1, max_size=6)
RECOVERIES = st.builds(
    Recoveries,
    st.sampled_from(Recovery),
    st.fixed_dictionaries(dict.fromkeys(TOOLS, st.sampled_from(Recovery))),
)


@given(TURNS, RECOVERIES, st.integers(0, 6))
async def test_a_conversation_continues_as_if_nothing_were_lost_or_is_a_fault(
    turns: list[Turn], recoveries: Recoveries, num_before: int
) -> None:
    undisturbed = Counting(recoveries)
    expected = [await play(undisturbed, turn) for turn in turns]
    recorded = expected[:num_before]
    episode = Counting(recoveries)
    if lost_part(recoveries, recorded) is not None:
        with pytest.raises(EnvironmentFault, match="says that it cannot be played again"):
            await bring_back(episode, recorded)
        assert not episode.asked
        return
    await bring_back(episode, recorded)
    parts = {"environment": recoveries.environment, **recoveries.tools}
    assert all(parts[name] is Recovery.REPLAYABLE for name in episode.asked)
    assert [await play(episode, turn) for turn in turns[num_before:]] == expected[num_before:]


MIXED = Recoveries(
    Recovery.REPLAYABLE,
    {"kept": Recovery.REPLAYABLE, "plain": Recovery.STATELESS, "odd": Recovery.NEITHER},
)


async def brought_back(turns: list[Turn]) -> Counting:
    first = Counting(MIXED)
    recorded = [await play(first, turn) for turn in turns]
    episode = Counting(MIXED)
    await bring_back(episode, recorded)
    return episode


async def test_a_tool_that_is_neither_costs_nothing_until_it_is_called() -> None:
    assert (await brought_back([None])).asked == {"environment": 1}
    with pytest.raises(EnvironmentFault, match='1 turns, and the tool "odd" says'):
        await brought_back([[Call("odd")]])
    # A call that could not be read was not made.
    assert not (await brought_back([[Call("odd", error="no JSON")]])).asked


async def test_what_tools_did_before_they_lost_their_state_is_not_played_again() -> None:
    late = Call("plain", {"do": LATE})
    episode = await brought_back([[Call("kept"), Call("odd")], [Call("kept"), late, Call("kept")], None])
    assert episode.asked == {"environment": 1}
    assert (await brought_back([[Call("kept"), late], [Call("kept")]])).asked == {"kept": 1}


@pytest.mark.parametrize("turn", [None, [Call("kept")]])
async def test_an_answer_that_differs_from_the_recorded_one_is_a_fault(turn: Turn) -> None:
    recorded = RecordedTurn("text", [{"role": "tool", "content": "other"}], turn)
    with pytest.raises(EnvironmentFault, match="turn 1 was played again after a loss and answered otherwise"):
        await bring_back(Counting(MIXED), [recorded])
