"""The parts of a run whose trajectories an agent makes: the endpoint, the programs, the player."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.controller.inputs import Inputs
from asyncrl.errors import InputError
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.rollout.agents.endpoint import AgentEndpoint
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.agents.recorder import CallRecorder
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.shaping import Shaping
from asyncrl.turns.agents.hosts import FunctionHosts
from asyncrl.turns.agents.process import ProcessPrograms, agent_command
from asyncrl.turns.agents.program import Programs
from asyncrl.turns.agents.reply import Replies
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.formats import call_format


@dataclass(frozen=True, slots=True)
class Agents:
    """The endpoint is an async context manager: it must be open while the player runs."""

    endpoint: AgentEndpoint
    player: AgentPlayer


def make_agents(
    inputs: Inputs,
    generator: Generator,
    shaping: Shaping,
    waits: Waits,
    state: RunPhase,
    *,
    hidden: Sequence[Path],
) -> Agents | None:
    """None where the recipe has no agent. `generator` plays turns; programs cannot read `hidden`, the run
    folder and files of rows. Raises InputError for a model folder without a chat template."""
    recipe, codec = inputs.recipe, inputs.codec
    agent = recipe.agent
    if not agent.is_on():
        return None
    if codec.template is None:
        raise InputError(
            f"agent needs a chat template, but the model folder {recipe.model.path} has none. Add "
            f"chat_template.jinja to it, or remove the section agent."
        )
    assert generator.plays_turns, "the end of a turn must leave an agent's trajectory open"
    replies = Replies(codec, lambda tools: call_format(recipe.turns.call_format, codec, ()))
    # The agent decides what its context is: nothing of it is cut.
    dialogue = Dialogue(codec, max_observed_tokens=inputs.context_tokens)
    recorder = CallRecorder(generator.queue, generator, replies, dialogue, waits, agent.max_calls)
    endpoint = AgentEndpoint(recorder, model=recipe.name)
    processes = ProcessPrograms(
        agent_command(agent.command, agent.function, recipe.verifying.own_files()),
        agent.columns,
        agent.environment,
        agent.memory_mib,
        agent.may_give_verdict,
        hidden,
    )
    programs: Programs = processes
    if agent.function is not None and agent.functions_per_process > 1:
        programs = FunctionHosts(
            agent.function, processes, agent.functions_per_process, agent.timeout_seconds
        )
    player = AgentPlayer(
        generator.queue,
        recorder,
        programs,
        shaping,
        waits,
        state,
        endpoint.base_url,
        timeout_seconds=agent.timeout_seconds,
        num_fault_retries=agent.num_fault_retries,
        max_agents=agent.max_agents,
    )
    return Agents(endpoint, player)
