"""Environments, tools and chat template of a schedule: slow, hanging, faulting and dying, and never wrong.

A reply follows from the turns alone, so that the end of a schedule can say what each trajectory should hold.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulation.plan import TurnPlan
from simulation.verifying import Codec, truth
from simulation.world import FIRST_OBSERVED, STOP_TOKENS, World, chain

from asyncrl.recipe.sections.turns import Turns
from asyncrl.records import EnvironmentSpec
from asyncrl.serving.fleet import Gate
from asyncrl.turns.calls import Call, CallResult
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.environment import End, Message, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault, Episode, Recoveries, TurnLimit

CUT_OFF, HEADER = FIRST_OBSERVED, FIRST_OBSERVED + 1
"""How the template ends a turn that was cut off, and begins the next one."""
ASKED_BY = "answer to "
"""The name of the task that awaits an answer, before the trajectory's."""


class Calls:
    """A turn whose numbers add up to a multiple of three calls a tool."""

    stop = ()
    is_inline = False

    def parse(self, turn: Sequence[int]) -> list[Call]:
        return [Call("tool", {"turn": list(turn)})] if sum(turn) % 3 == 0 else []

    def around(self, result: CallResult) -> tuple[str, str]:
        raise AssertionError("no result is inline")


class Template:
    def answer(self, turn: Sequence[int], messages: Sequence[Message]) -> list[int]:
        end = [] if turn[-1] in STOP_TOKENS else [CUT_OFF]
        return [*end, *(int(word) for each in messages for word in each["content"].split()), HEADER]

    def by(self, codec: object) -> "Template":
        return self


def is_call(turns: TurnPlan, turn: Sequence[int]) -> bool:
    return turns.has_tools and bool(Calls().parse(turn))


def reply(turns: TurnPlan, played: Sequence[Sequence[int]]) -> str | End:
    """The answer of environment or tool to the last of the turns `played`."""
    known = played[-1:] if turns.recovery == Recovery.STATELESS else played
    number = abs(chain([token for turn in known for token in turn]))
    if not is_call(turns, played[-1]) and number % 10 < 3:
        return End(None if number % 10 == 0 else float(number // 10 % 2), "the end")
    words = (FIRST_OBSERVED + 2 + (number >> bits) % 1000 for bits in range(number // 7 % 4))
    return " ".join(map(str, words))


@dataclass(frozen=True)
class Expected:
    """Contents of the journal that a trajectory's turns imply."""

    observations: list[list[int]]
    correctness: float
    """Once it ended, unless by a fault or a limit of time."""


def expect(turns: TurnPlan, played: list[list[int]]) -> Expected:
    """`played` as in `Trajectory.turns`: the last turn may be empty."""
    spoken = [turn for turn in played if turn]
    answers = [reply(turns, spoken[: index + 1]) for index in range(len(spoken))]
    observed = [
        Template().answer(turn, [{"content": answer}]) if isinstance(answer, str) else []
        for turn, answer in zip(spoken, answers, strict=True)
    ]
    found = truth(Codec().decode(spoken[-1])) if spoken else 0.0
    is_asked = bool(spoken) and turns.has_environment and not is_call(turns, spoken[-1])
    if is_asked and played[-1] and isinstance(answers[-1], End) and answers[-1].score is not None:
        found = answers[-1].score
    return Expected(observed[: len(played) - 1], found)


class SimulatedEpisodes:
    def __init__(self, world: World, turns: TurnPlan) -> None:
        self.world = world
        self.turns = turns
        self.places = asyncio.Semaphore(turns.max_processes)
        self.asked: dict[str, set[SimulatedEpisode]] = {}
        """Trajectory -> processes that were given one of its turns."""
        self.answered: set[tuple[str, int]] = set()
        """(trajectory, turn) that were answered, replays left out."""

    async def open(self, environment: EnvironmentSpec | None) -> Episode:
        if self.places.locked():
            self.world.reached.add("a wait for a place")
        await self.places.acquire()
        self.world.num_environments += 1
        return SimulatedEpisode(self)


class SimulatedEpisode:
    """A process. It is killed when it is late, as a real one is."""

    def __init__(self, episodes: SimulatedEpisodes) -> None:
        self._episodes, self._world, self._turns = episodes, episodes.world, episodes.turns
        self.recovery = Recovery(self._turns.recovery)
        self.recoveries = Recoveries(self.recovery, {"tool": self.recovery})
        self._given: list[list[int]] = []
        self._is_dead = False
        self._is_closed = False

    async def start(self, row: Mapping[str, Any]) -> list[Message] | None:
        await self._work()
        return None

    async def step(self, text: str) -> Observation | End:
        answer = await self._answer([int(word) for word in text.split()])
        return Observation(answer) if isinstance(answer, str) else answer

    async def call(self, calls: Sequence[Call]) -> list[CallResult]:
        (call,) = calls
        self._world.reached.add("a call")
        answer = await self._answer(list(call.arguments["turn"]))
        assert isinstance(answer, str)
        return [CallResult(call.name, answer)]

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._world.num_environments -= 1
            self._episodes.places.release()

    async def _answer(self, turn: list[int]) -> str | End:
        trajectory = self._asker()
        number = self._check_is_due(trajectory, turn)
        version = self._version()
        try:
            await self._work()
        except asyncio.CancelledError:
            if not self._world.is_open(trajectory):
                self._world.reached.add("an answer that is abandoned")
            raise
        self._note_moment(version)
        self._given.append(turn)
        if number is not None:
            self._episodes.answered.add((trajectory, number))
        if self._world.rng.random() < self._turns.death_share:
            self._world.note(f"the environment of {trajectory} dies after its answer")
            self._is_dead = True
        return reply(self._turns, self._given)

    def _version(self) -> int | None:
        assert self._world.controller is not None
        return self._world.controller.queue.version

    def _note_moment(self, begun_at: int | None) -> None:
        """Notes events that the answer came in the middle of."""
        world = self._world
        assert world.controller is not None
        if world.plan.is_colocated and world.is_trainer_computing:
            world.reached.add("an answer while the servers sleep")
        if world.controller.fleet.router.gate is Gate.ENDING:
            world.reached.add("an answer that a drain waits for")
        if begun_at != self._version():
            world.reached.add("an answer over a publish")

    def _asker(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name().removeprefix(ASKED_BY)

    async def _work(self) -> None:
        """Takes some time, or fails."""
        world, turns, name = self._world, self._turns, self._asker()
        kind = world.rng.random()
        if self._is_dead or kind < turns.fault_share:
            world.note(f"the environment of {name} fails")
            raise EnvironmentFault("its process is gone")
        seconds = min(world.delay(turns.answer_seconds), 0.9 * turns.timeout_seconds)
        if kind > 1.0 - turns.hang_share:
            world.note(f"the environment of {name} hangs")
            seconds = turns.timeout_seconds
        await asyncio.sleep(0.5 * seconds)
        was_over = not world.is_open(name)
        await asyncio.sleep(0.5 * seconds)
        world.tool_seconds[name] = world.tool_seconds.get(name, 0.0) + seconds
        if was_over and seconds:
            world.violate(f"the environment of {name} works on after its group was dropped")
        if seconds == turns.timeout_seconds:
            world.late.add(name)
            world.reached.add("a turn over its time")
            raise TurnLimit("the turn took too long")

    def _check_is_due(self, name: str, turn: list[int]) -> int | None:
        """The turn's number if it is the one to be answered, None for a replay."""
        world, episodes, trajectory = self._world, self._episodes, self._world.trajectory(name)
        if trajectory is None:
            # Dropped in this very moment; `_work` sees that the answer is abandoned before any time passes.
            return None
        if trajectory.finish is not None:
            return world.violate(f"{name} is over, and its environment is asked")
        number, played = trajectory.num_observations(), trajectory.turns()
        others = episodes.asked.setdefault(name, set()) - {self}
        episodes.asked[name].add(self)
        if self.recovery is Recovery.REPLAYABLE and len(self._given) < number:
            if turn != played[len(self._given)]:
                world.violate(f"turn {len(self._given)} of {name} is replayed as {turn}")
            world.reached.add("a replay")
            return None
        if number and not self._given:
            world.reached.add("a loss that needs no replay")
        if turn != played[-1]:
            world.violate(f"turn {number} of {name} is not {turn}, which its environment is asked")
        if (name, number) in episodes.answered:
            world.violate(f"turn {number} of {name} was answered, and is asked again")
        if self.recovery is Recovery.NEITHER and (others or len(self._given) != number):
            world.violate(f"{name} continues in a new process after {number} answers, and cannot")
        return number


def make_conversations(world: World) -> Conversations | None:
    """None where trajectories have one turn. One per life of the controller: its processes end with it."""
    turns = world.plan.turns
    if turns is None:
        return None
    codec: Any = Codec(turns.stop)
    template: Any = Template()
    return Conversations(
        codec,
        template,
        SimulatedEpisodes(world, turns),
        Turns(
            max_turns=turns.max_turns,
            max_tool_seconds=turns.max_tool_seconds,
            num_fault_retries=turns.num_fault_retries,
        ),
        Calls() if turns.has_tools else None,
        clock=asyncio.get_running_loop().time,
    )
