"""The agents of a recipe and the parts that play them: on the rollouts' generator, or on that of
an evaluation."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.journal.kept_answers import KeptReplies
from asyncrl.loops import RunPart, RunPhase, Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Agent, Recipe
from asyncrl.recipe.file import shown
from asyncrl.rollout.agents.endpoint import AgentEndpoint
from asyncrl.rollout.agents.hosts import FunctionHosts
from asyncrl.rollout.agents.opponents import make_opponents
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.agents.process import ProcessPrograms, Programs, agent_command
from asyncrl.rollout.agents.recorder import CallRecorder
from asyncrl.rollout.agents.reply import Replies
from asyncrl.rollout.agents.warm import WarmPrograms, python_arguments
from asyncrl.rollout.credits import Shaping
from asyncrl.rollout.generate import Generator
from asyncrl.serving.fleet import Fleet
from asyncrl.system.plugins import FaultsInARow
from asyncrl.turns.calls import call_format
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.tally import AGENTS, Tally

_NO_OPPONENTS: Mapping[str, Fleet] = {}


@dataclass(frozen=True, slots=True)
class Agents(RunPart):
    """An async context manager: it must be open while the player runs."""

    endpoint: AgentEndpoint
    player: AgentPlayer

    async def begin(self) -> None:
        await self.__aenter__()

    async def close(self) -> None:
        await self.__aexit__()

    async def __aenter__(self) -> "Agents":
        await self.endpoint.__aenter__()
        if isinstance(self.player.programs, WarmPrograms):
            await self.player.programs.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self.player.programs, WarmPrograms):
            await self.player.programs.__aexit__()
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
    opponents: Mapping[str, Fleet] = field(default_factory=dict)
    """Servers of each opponent."""

    def agents(
        self,
        generator: Generator,
        codec: TextCodec,
        shaping: Shaping,
        waits: Waits,
        state: RunPhase,
        *,
        places: asyncio.Semaphore | None = None,
        kept: KeptReplies | None = None,
    ) -> Agents:
        """Agents whose replies `generator` samples, which plays turns, in the tokens of `codec`, which has a
        chat template. Programs of several players that share `places` are at most agent.max_agents. Replies
        of opponents are in `kept`, without it in memory."""
        assert generator.turns is not None, "the end of a turn must leave an agent's trajectory open"
        replies = Replies(codec, lambda tools: call_format(self.call_format, codec, ()))
        # The agent decides what its context is: nothing of it is cut.
        dialogue = Dialogue(codec, max_observed_tokens=generator.limits.context_tokens)
        tally = Tally(AGENTS, self.warned)
        most, roles = self.section.max_calls, self.section.roles
        opponents = make_opponents(self.opponents, generator, waits, state, kept)
        recorder = CallRecorder(
            generator.queue, generator, replies, dialogue, waits, most, roles, opponents, tally
        )
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


def make_agent_kit(
    recipe: Recipe,
    codec: TextCodec,
    *,
    hidden: Sequence[Path],
    opponents: Mapping[str, Fleet] = _NO_OPPONENTS,
) -> AgentKit | None:
    """None where the recipe has no agent. Programs cannot read `hidden`, the run folder and files of rows.
    Raises InputError for a model folder without a chat template."""
    agent = recipe.agent
    if not agent.is_on():
        return None
    check_agent(recipe, codec)
    command = agent_command(agent.command, agent.function, recipe.verifying.own_files())
    processes = ProcessPrograms(command, agent, hidden)
    programs: Programs
    if agent.function is not None and agent.functions_per_process > 1:
        programs = FunctionHosts(
            agent.function, processes, agent.functions_per_process, agent.timeout_seconds
        )
    else:
        path = processes.own_variables(Path())["PATH"]
        arguments = python_arguments(processes.command, path) if agent.starts_warm else None
        programs = processes if arguments is None else WarmPrograms(processes, arguments)
    return AgentKit(programs, agent, recipe.turns.call_format, recipe.name, opponents=opponents)


def agent_in_short(agent: Agent) -> str:
    """Its program, and what it makes."""
    program = agent.function or " ".join(agent.command or ())
    roles = f", as {' and '.join(agent.roles)}" if agent.roles else ""
    for name, path in agent.opponents.items():
        roles += f", with the frozen {name} ({shown(Path(path))})"
    return (
        f"{program}{roles}, started for each trajectory, held-out ones too, at most {agent.max_calls} calls"
    )


def check_agent(recipe: Recipe, codec: TextCodec) -> None:
    """Raises InputError for a model folder without a chat template, where the recipe has an agent."""
    if recipe.agent.is_on() and codec.template is None:
        raise InputError(
            f"agent needs a chat template, but the model folder {recipe.model.path} has none. Add "
            f"chat_template.jinja to it, or remove the section agent."
        )
