"""Opponents: roles of an episode that frozen models play, each on a server of its own (agent.opponents).

What they say is sampled as rollouts are, on a record in memory, and is context to the policy: never trained.
Replies are kept until their trajectory ends, so that an agent that starts again after a crash is told the
same, and its calls to the policy are found in the journal. A reply that was lost is sampled again, and so are
the policy's turns behind it.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.journal.kept_answers import KeptReplies, Said
from asyncrl.loops import RunPart, RunPhase, Waits, end_tasks
from asyncrl.recipe import Serving
from asyncrl.records import Task, Trajectory, VerifierSpec
from asyncrl.replay.branches import Unrecorded
from asyncrl.replay.group import Group, trajectory_id
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.request_rules import MAX_RETRIES, UNTRAINED, Limits, TurnBounds
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.server_process import ProcessOwner
from asyncrl.system.places import OPPONENT_REPLIES


@dataclass
class Opponents:
    """One per run, and one per evaluation."""

    generators: Mapping[str, Generator] = field(default_factory=dict)
    """Opponent -> what samples its replies."""
    kept: KeptReplies = field(default_factory=KeptReplies)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def reply(
        self, name: str, context: Sequence[int], bounds: TurnBounds, *, trajectory: Trajectory, call: str
    ) -> Said | None:
        """The reply of the opponent `name` to `context`, in the `call` of `trajectory`; greedy where that is.
        None where the run ends first. Raises ServerError."""
        said = self.kept.find(trajectory.trajectory_id, call)
        if said is not None:
            return said
        number, generator = next(self._numbers), self.generators[name]
        turn = Trajectory(trajectory_id(number, 0), tuple(context), is_greedy=trajectory.is_greedy)
        task = Task(f"opponent {name}", "", turn.prompt_tokens, None, VerifierSpec(""))
        group = Group(number, task, 0, [turn])
        generator.limits.bounds[turn.trajectory_id] = bounds
        try:
            await self._run(name, generator, group)
        finally:
            generator.forget(group)
        if turn.finish is None:
            return None
        logprobs = [logprob for part in turn.sampled() for logprob in part.behavior_logprobs]
        said = Said(turn.response_tokens(), logprobs, turn.finish)
        self.kept.keep(trajectory.trajectory_id, call, said)
        return said

    def forget(self, trajectory: Trajectory) -> None:
        """It has ended."""
        if self.generators:
            self.kept.forget(trajectory.trajectory_id)

    async def _run(self, name: str, generator: Generator, group: Group) -> None:
        """Raises ServerError where the opponent's server does not come back."""

        async def stream() -> None:
            async for _ in generator.run(group):
                pass

        work, members = asyncio.create_task(stream()), generator.fleet.members
        work.add_done_callback(lambda _: generator.waits.notify())
        try:
            await generator.waits.wait_until(
                lambda: work.done() or not members.has_hope(),
                owner=f"a reply of opponent {name}",
                blocker="its server",
            )
            if not work.done():
                raise ServerError(f"the server of agent.opponents.{name} is lost: {members.reasons()}")
            work.result()
        finally:
            await end_tasks(work)


def make_opponents(
    fleets: Mapping[str, Fleet], policy: Generator, waits: Waits, state: RunPhase, kept: KeptReplies | None
) -> Opponents:
    """Opponents that sample as `policy` does."""
    own = policy.limits
    generators = {
        name: Generator(
            Unrecorded(),
            fleet,
            waits,
            Limits(own.sampling, own.context_tokens, own.max_turn_tokens, stop=own.stop),
            MAX_RETRIES,
            f"{policy.run_id}-{name}",
            state=state,
            rules=UNTRAINED,
        )
        for name, fleet in fleets.items()
    }
    return Opponents(generators, kept or KeptReplies())


@dataclass(frozen=True, slots=True)
class OpponentServers(RunPart):
    """The servers of a run's opponents, which serve what they were started with."""

    fleets: Mapping[str, Fleet]
    kept: KeptReplies

    def serve(self) -> None:
        """They have started."""
        for fleet in self.fleets.values():
            fleet.members.serve_fixed(version=0)

    async def loop(self) -> None:
        self.serve()

    async def close(self) -> None:
        for fleet in self.fleets.values():
            await fleet.members.close()
        self.kept.close()


def opponent_servers(
    serving: Serving,
    urls: Mapping[str, str] | None,
    session: aiohttp.ClientSession,
    waits: Waits,
    processes: ProcessOwner,
    run_folder: Path | None = None,
) -> OpponentServers:
    """Those at `urls`, by the names of opponents; replies are kept in the run folder where there is one."""
    settings = FleetSettings(max_running_requests=serving.max_running_requests)
    fleets = {
        name: Fleet([url], settings, session=session, waits=waits, processes=processes)
        for name, url in (urls or {}).items()
    }
    path = run_folder / OPPONENT_REPLIES if fleets and run_folder is not None else None
    return OpponentServers(fleets, KeptReplies(path))
