"""Trajectories as the journal has them, against the ledger of sampled tokens and what environments reply."""

import sqlite3
from dataclasses import dataclass, field

from fakes.sequences import sampled_positions
from simulation.environments import expect
from simulation.plan import TurnPlan
from simulation.world import STOP_TOKENS, World, chain

from asyncrl.journal.packing import unpack_logprobs, unpack_tokens
from asyncrl.model.token_text import StopStrings
from asyncrl.records import ScoredSequence

_PARTS = """
SELECT trajectory_id, position, version, tokens, logprobs FROM segments WHERE {0}
UNION ALL SELECT trajectory_id, position, NULL, tokens, NULL FROM observations WHERE {0}
ORDER BY trajectory_id, position
"""


@dataclass
class Journaled:
    """A response on disk."""

    name: str
    tokens: list[int] = field(default_factory=list)
    sampled: list[tuple[int, int, float]] = field(default_factory=list)
    """(position, version, behavior log-prob)."""
    observed: list[tuple[int, int]] = field(default_factory=list)
    """(first, end)."""
    has_gap: bool = False

    def turns(self) -> list[list[int]]:
        ends = [*(first for first, _ in self.observed), len(self.tokens)]
        starts = [0, *(end for _, end in self.observed)]
        return [self.tokens[first:end] for first, end in zip(starts, ends, strict=True)]

    def observations(self) -> list[list[int]]:
        return [self.tokens[first:end] for first, end in self.observed]


def read_all(connection: sqlite3.Connection, name: str | None = None) -> dict[str, Journaled]:
    """All trajectories that have tokens, or the one that is named."""
    found: dict[str, Journaled] = {}
    where = "1" if name is None else f"trajectory_id = '{name}'"
    for owner, position, version, packed, logprobs in connection.execute(_PARTS.format(where)):
        one = found.setdefault(owner, Journaled(owner))
        tokens, first = unpack_tokens(packed), len(one.tokens)
        one.has_gap |= first != position
        one.tokens += tokens
        if version is None:
            one.observed.append((first, len(one.tokens)))
        else:
            numbers = enumerate(unpack_logprobs(logprobs), start=first)
            one.sampled += [(place, version, logprob) for place, logprob in numbers]
    return found


def check_sequence_is_journaled(world: World, sequence: ScoredSequence) -> None:
    """The trainer is given the response on disk, with its observations where they are there."""
    name = sequence.sequence_id
    one = read_all(world.connection, name).get(name, Journaled(name))
    num_kept = 1 + max((place for place, _, _ in one.sampled), default=-1)
    if one.tokens[:num_kept] != list(sequence.response_tokens):
        world.violate(f"{name} is trained as {sequence.response_tokens}, journaled as {one.tokens}")
    if [span for span in one.observed if span[1] <= num_kept] != sequence.observed:
        world.violate(f"{name}: {one.observed} was observed, the trainer is told {sequence.observed}")
    if sampled_positions(sequence) != [place for place, _, _ in one.sampled]:
        world.violate(f"{name}: other tokens are called sampled than were journaled as sampled")
    if world.plan.turns is not None:
        world.reached.add("several turns trained" if sequence.observed else "one turn trained")
        allowed = _correctness(world, world.plan.turns, one)
        if sequence.reward not in allowed:
            world.violate(f"{name} has reward {sequence.reward}, expected one of {allowed}")


def check_journaled(world: World, connection: sqlite3.Connection) -> None:
    """At the end: each sampled token once, with its version, behind what it was sampled after; each
    observation as its environment gave it; each turn ended where it should; each verdict as given."""
    prompts = dict(connection.execute("SELECT trajectory_id, prompt_tokens FROM trajectories"))
    seen: set[float] = set()
    found = read_all(connection)
    for one in found.values():
        if one.has_gap:
            world.violate(f"{one.name}: segments and observations leave a gap or overlap")
        if prompts[one.name]:
            _check_tokens(world, one, unpack_tokens(prompts[one.name]), seen)
        if world.plan.turns is not None:
            _check_turns(world, world.plan.turns, one)
    if world.plan.turns is not None:
        _check_verdicts(world, world.plan.turns, connection, found)


def _check_tokens(world: World, one: Journaled, prompt: list[int], seen: set[float]) -> None:
    contexts = [chain(prompt)]
    for token in one.tokens:
        contexts.append(chain((token,), contexts[-1]))
    for place, version, logprob in one.sampled:
        made = world.find(logprob)
        if logprob in seen:
            world.violate(f"token {-logprob:.0f} of {one.name} is journaled twice")
        seen.add(logprob)
        if (made.trajectory, made.position, made.token) != (one.name, place, one.tokens[place]):
            world.violate(f"{one.name}[{place}] = {one.tokens[place]} was made as {made}")
        if made.version != version or made.context != contexts[place]:
            world.violate(f"{one.name}[{place}] has version {version} and another context than {made}")


def _check_turns(world: World, turns: TurnPlan, one: Journaled) -> None:
    played = one.turns()
    observations = one.observations()
    if observations != expect(turns, played).observations:
        world.violate(f"{one.name}: its environment never answered {observations} to {played}")
    if not played[-1]:
        world.reached.add("a context that is full")
    if len(played) > turns.max_turns:
        world.violate(f"{one.name} has {len(played)} turns")
    stop = StopStrings(turns.stop, lambda tokens: " ".join(map(str, tokens)))
    for turn in played:
        if set(turn[:-1]) & set(STOP_TOKENS) or stop.search(turn[:-1]).end is not None:
            world.violate(f"{one.name}: the turn {turn} continued past its end")
        if turn and stop.search(turn).end is not None:
            world.reached.add("a turn that ends by its text")


def _check_verdicts(
    world: World, turns: TurnPlan, connection: sqlite3.Connection, found: dict[str, Journaled]
) -> None:
    scored = "SELECT trajectory_id, correctness, detail FROM trajectories WHERE outcome != 'fault'"
    for name, correctness, detail in connection.execute(scored):
        if name not in found:
            continue
        allowed = _correctness(world, turns, found[name])
        if correctness not in allowed:
            world.violate(f"{name} is recorded as {correctness} ({detail}), expected one of {allowed}")
    twice = connection.execute("SELECT trajectory_id, count(*) FROM verdicts GROUP BY 1 HAVING count(*) > 1")
    for name, count in twice:
        world.violate(f"{name} got {count} verdicts")


def _correctness(world: World, turns: TurnPlan, one: Journaled) -> set[float]:
    played = one.turns()
    allowed = {expect(turns, played).correctness}
    if one.name in world.late or world.tool_seconds.get(one.name, 0.0) >= turns.max_tool_seconds - 1e-6:
        allowed.add(0.0)
    return allowed
