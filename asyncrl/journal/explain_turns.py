"""The turns of a trajectory in plain sentences: what was sampled, called and observed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.journal.observations import as_text
from asyncrl.journal.rows import CallRow, ObservationRow, TrajectoryRow

LONGEST_TEXT = 80
"""Characters of an argument, a result or a message that a sentence shows."""
_ENDS = {"stop": "ended by itself", "length": "cut at the length limit"}


def turn_sentences(trajectory: TrajectoryRow) -> Iterator[str]:
    """One per turn; none where there is one turn, without an answer."""
    observations = trajectory["observations"]
    if not observations:
        return
    start = 0
    for number, observation in enumerate(observations, start=1):
        size = tokens_in_words(_num_sampled(trajectory, start, observation["position"]))
        end = _ENDS.get(observation["turn_finish"], observation["turn_finish"])
        yield f"Turn {number}: {size}, {end}; {_answer(observation)}."
        start = observation["position"]
    left = _num_sampled(trajectory, start, None)
    number = len(observations) + 1
    if not left and not observations[-1]["tokens"]:
        yield f"Turn {number} begins a branch, which has a context of its own."
    elif trajectory["finish"] is None:
        yield f"Turn {number}: {tokens_in_words(left)} so far."
    elif left:
        yield f"Turn {number}: {tokens_in_words(left)}, the last turn."
    else:
        yield (
            f"Turn {number} has no token: what was observed left no room in the context or in "
            f"rollout.max_new_tokens."
        )


def observed_sentence(observations: Sequence[ObservationRow]) -> str:
    """How much of a trajectory was observed; empty where nothing was."""
    if not observations:
        return ""
    size = tokens_in_words(sum(len(observation["tokens"]) for observation in observations), "observed ")
    answers = "an answer to a turn" if len(observations) == 1 else f"{len(observations)} answers to turns"
    return f"{size} in {answers}, which no policy sampled."


def tokens_in_words(count: int, kind: str = "") -> str:
    return f"{count} {kind}token{'' if count == 1 else 's'}"


def _num_sampled(trajectory: TrajectoryRow, start: int, end: int | None) -> int:
    """Sampled tokens from the position `start` on, up to `end`."""
    return sum(
        len(segment["tokens"])
        for segment in trajectory["segments"]
        if segment["position"] >= start and (end is None or segment["position"] < end)
    )


def _answer(observation: ObservationRow) -> str:
    seconds = "" if observation["seconds"] is None else f" in {observation['seconds']:.3g} s"
    reward = "" if observation["reward"] is None else f", with a reward of {observation['reward']:g}"
    if observation["calls"]:
        said = f"it {_listed([_call(call) for call in observation['calls']])}"
    elif observation["messages"]:
        said = f"the answer was {_listed([_shown(m['text']) for m in observation['messages']])}"
    else:
        said = "it was answered"
    return f"{said}{seconds}{reward}: {tokens_in_words(len(observation['tokens']), 'observed ')}"


def _call(call: CallRow) -> str:
    if call["error"]:
        named = f"a call of {call['name']}" if call["name"] else "a call"
        return f"wrote {named} that cannot be made ({_cut(call['error'])})"
    said = "which failed with" if call["is_error"] else "which answered"
    return f"called {call['name']}({_arguments(call['arguments'])}), {said} {_shown(call['output'])}"


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{_cut(name)}={_shown(value) if isinstance(value, str) else _cut(as_text(value))}"
        for name, value in arguments.items()
    )


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}... ({len(text) - LONGEST_TEXT} more characters)"


def _listed(parts: list[str]) -> str:
    return ", and ".join(parts)
