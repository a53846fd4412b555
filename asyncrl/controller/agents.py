"""The agents of a recipe: their programs, and the check of the model that they talk to."""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Agent, Recipe
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.turns.agents.hosts import FunctionHosts
from asyncrl.turns.agents.process import ProcessPrograms, agent_command
from asyncrl.turns.agents.program import Programs


def make_agent_kit(recipe: Recipe, codec: TextCodec, *, hidden: Sequence[Path]) -> AgentKit | None:
    """None where the recipe has no agent. Programs cannot read `hidden`, the run folder and files of rows.
    Raises InputError for a model folder without a chat template."""
    agent = recipe.agent
    if not agent.is_on():
        return None
    check_agent(recipe, codec)
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
    return AgentKit(programs, agent, recipe.turns.call_format, recipe.name)


def agent_in_short(agent: Agent) -> str:
    """Its program, and what it makes."""
    program = agent.function or " ".join(agent.command or ())
    return f"{program}, started for each trajectory, held-out ones too, at most {agent.max_calls} calls"


def check_agent(recipe: Recipe, codec: TextCodec) -> None:
    """Raises InputError for a model folder without a chat template, where the recipe has an agent."""
    if recipe.agent.is_on() and codec.template is None:
        raise InputError(
            f"agent needs a chat template, but the model folder {recipe.model.path} has none. Add "
            f"chat_template.jinja to it, or remove the section agent."
        )
