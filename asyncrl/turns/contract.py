"""The contract that every environment keeps, as checks that authors of environments run.

Each check is one promise of `asyncrl.turns.environment.Environment`; a failed one says which promise, on what
input. Runs in a pool's processes, as in training, so that an environment that hangs or dies fails its check
instead of the caller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.environment import End, Message, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault, TurnLimit
from asyncrl.turns.pool import EpisodePool
from verifiers.contract import HOSTILE_RESPONSES, Check

TURNS: tuple[str, ...] = ("42", "<answer>42</answer>", "I do not know", "The answer is \\boxed{7}.")
"""A short conversation, for what must answer alike twice."""
MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _Played:
    """The words of an environment in a conversation."""

    opening: list[Message] | None
    replies: list[Observation | End]


async def check_environment(
    name: str,
    options: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    folder: Path | None = None,
    turns: Sequence[str] = TURNS,
    timeout_seconds: float = 10.0,
    memory_bytes: int = 1 << 30,
    hostile: Sequence[str] = HOSTILE_RESPONSES,
    prints: Path | None = None,
) -> list[Check]:
    """The environment's checks. `rows`: data rows to start it with; `turns`: texts of a conversation that
    should answer alike twice; `hostile`: texts that no model should be able to break it with."""
    spec = EnvironmentSpec(name, dict(options))
    async with EpisodePool(
        folder=folder,
        timeout_seconds=timeout_seconds,
        memory_bytes=memory_bytes,
        prints=prints,
        max_processes=1,
    ) as pool:
        return await _checks(pool, spec, rows, turns, hostile)


async def _checks(
    pool: EpisodePool,
    spec: EnvironmentSpec,
    rows: Sequence[Mapping[str, Any]],
    turns: Sequence[str],
    hostile: Sequence[str],
) -> list[Check]:
    promise = "it loads by its name"
    try:
        episode = await pool.open(spec)
    except EnvironmentFault as fault:
        return [Check(promise, False, _words(fault))]
    recovery = episode.recoveries.environment
    await episode.close()
    checks = [Check(promise, True), await _starts_alike(pool, spec, rows)]
    if not checks[-1].passed:
        return checks
    checks.append(await _answers_everything(pool, spec, rows[:2], hostile))
    if checks[-1].passed:
        checks.append(await _replays(pool, spec, rows, turns, recovery))
    return checks


async def _starts_alike(pool: EpisodePool, spec: EnvironmentSpec, rows: Sequence[Mapping[str, Any]]) -> Check:
    promise = "start opens the same conversation for the same row each time"
    for number, row in enumerate(rows, start=1):
        try:
            first, second = [(await _play(pool, spec, row, [])).opening for _ in range(2)]
        except (EnvironmentFault, TurnLimit) as error:
            return Check(promise, False, f"row {number}: {_words(error)}")
        if first != second:
            return Check(promise, False, f"row {number}: {_shown(first)}, then {_shown(second)}")
    return Check(promise, True)


async def _answers_everything(
    pool: EpisodePool, spec: EnvironmentSpec, rows: Sequence[Mapping[str, Any]], hostile: Sequence[str]
) -> Check:
    promise = "no text makes step raise, exit or hang"
    for row in rows:
        pending = list(hostile)
        while pending:
            # The text that ends a conversation is followed by the others in the next one.
            text, num_answered = pending[0], 0
            episode = await pool.open(spec)
            try:
                await episode.start(row)
                for text in pending:
                    num_answered += 1
                    if isinstance(await episode.step(text), End):
                        break
            except (EnvironmentFault, TurnLimit) as error:
                shown = f"{text[:MAX_SHOWN]!r} ({len(text)} characters)"
                return Check(promise, False, f"{shown}: {_words(error)}")
            finally:
                await episode.close()
            pending = pending[num_answered:]
    return Check(promise, True)


async def _replays(
    pool: EpisodePool,
    spec: EnvironmentSpec,
    rows: Sequence[Mapping[str, Any]],
    turns: Sequence[str],
    recovery: Recovery,
) -> Check:
    promise = "the same turns get the same answers (recovery: replayable)"
    if recovery is not Recovery.REPLAYABLE:
        return Check(promise, True, f"its recovery is {recovery}")
    for number, row in enumerate(rows, start=1):
        first, second = [await _play(pool, spec, row, turns) for _ in range(2)]
        for turn, one, other in zip(turns, first.replies, second.replies, strict=False):
            if one != other:
                return Check(
                    promise, False, f"row {number}, turn {turn!r}: {_shown(one)}, then {_shown(other)}"
                )
    return Check(promise, True)


async def _play(
    pool: EpisodePool, spec: EnvironmentSpec, row: Mapping[str, Any], turns: Sequence[str]
) -> _Played:
    episode = await pool.open(spec)
    try:
        played = _Played(await episode.start(row), [])
        for turn in turns:
            played.replies.append(await episode.step(turn))
            if isinstance(played.replies[-1], End):
                break
        return played
    finally:
        await episode.close()


def _words(error: Exception) -> str:
    trace = error.trace if isinstance(error, EnvironmentFault) else ""
    return f"{error}\n{trace}".rstrip()


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
