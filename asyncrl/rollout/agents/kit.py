"""The agents of a recipe and the parts that play them: on the rollouts' generator, or on that of
an evaluation."""

import asyncio
from dataclasses import dataclass, field

from asyncrl.loops.run_part import RunPart
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Agent
from asyncrl.rollout.agents.endpoint import AgentEndpoint
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.agents.recorder import CallRecorder
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.shaping import Shaping
from asyncrl.system.faults_in_a_row import FaultsInARow
from asyncrl.turns.agents.program import Programs
from asyncrl.turns.agents.reply import Replies
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.formats import call_format
from asyncrl.turns.tally import AGENTS, Tally


@dataclass(frozen=True, slots=True)
class Agents(RunPart):
    """The endpoint is an async context manager: it must be open while the player runs."""

    endpoint: AgentEndpoint
    player: AgentPlayer

    async def begin(self) -> None:
        await self.endpoint.__aenter__()

    async def close(self) -> None:
        await self.endpoint.__aexit__()


@dataclass(frozen=True, slots=True)
class AgentKit:
    programs: Programs
    section: Agent
    call_format: str
    """As turns.call_format."""
    model: str
    """Name that GET /v1/models says."""
    warned: set[str] = field(default_factory=set)
    """As `Tally.warned`."""

    def agents(
        self,
        generator: Generator,
        codec: TextCodec,
        shaping: Shaping,
        waits: Waits,
        state: RunPhase,
        *,
        places: asyncio.Semaphore | None = None,
    ) -> Agents:
        """Agents whose replies `generator` samples, which plays turns, in the tokens of `codec`, which has a
        chat template. Programs of several players that share `places` are at most agent.max_agents."""
        assert generator.turns is not None, "the end of a turn must leave an agent's trajectory open"
        replies = Replies(codec, lambda tools: call_format(self.call_format, codec, ()))
        # The agent decides what its context is: nothing of it is cut.
        dialogue = Dialogue(codec, max_observed_tokens=generator.limits.context_tokens)
        tally = Tally(AGENTS, self.warned)
        most = self.section.max_calls
        recorder = CallRecorder(generator.queue, generator, replies, dialogue, waits, most, tally)
        endpoint = AgentEndpoint(recorder, model=self.model)
        player = AgentPlayer(
            generator.queue,
            recorder,
            self.programs,
            shaping,
            waits,
            state,
            endpoint.base_url,
            timeout_seconds=self.section.timeout_seconds,
            num_fault_retries=self.section.num_fault_retries,
            max_agents=self.section.max_agents,
            places=places,
            faults=FaultsInARow(self.section.max_faults_in_a_row),
        )
        return Agents(endpoint, player)
