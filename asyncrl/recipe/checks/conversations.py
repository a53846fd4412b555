"""Checks of turns and agents, and of the templates that write what they read."""

from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.prompt import Prompt
from asyncrl.recipe.sections.turns import Turns


def check_agent(agent: Agent, turns: Turns) -> None:
    if not agent.is_on():
        return
    if turns.is_on():
        raise ValueError(
            f"agent.command or agent.function is set, but turns.environment is {turns.environment} and "
            f"turns.tools is {turns.tools}: an agent brings its own. Remove one of the two."
        )
    if turns.call_format in ("tags", "fenced"):
        raise ValueError(
            f"turns.call_format is {turns.call_format}, but calls of an agent's tools are messages. Set "
            f"turns.call_format to auto, hermes or llama."
        )


def check_template_arguments(prompt: Prompt | None, turns: Turns, agent: Agent) -> None:
    if prompt is None or not prompt.chat_template_kwargs or not prompt.writes_text():
        return
    if not turns.is_on() and not agent.is_on():
        raise ValueError(
            f"prompt.chat_template_kwargs is set but prompt.template {str(prompt.template)[:80]!r} "
            f"writes text, which the chat template never sees. Set prompt.template to chat, or remove "
            f"prompt.chat_template_kwargs."
        )


def check_history(prompt: Prompt | None, turns: Turns, agent: Agent) -> None:
    if prompt is None or not prompt.history == "as_rendered":
        return
    if agent.is_on():
        raise ValueError(
            "prompt.history is as_rendered, but agent.command or agent.function is set: an agent says "
            "the whole history with each call, and what it rewrites begins a branch anyway. Remove "
            "prompt.history."
        )
    if not turns.is_on():
        raise ValueError(
            "prompt.history is as_rendered but neither turns.environment nor turns.tools is set: with "
            "one turn there is no history. Remove prompt.history, or set one of the two."
        )
    if turns.call_format == "tags":
        raise ValueError(
            "prompt.history is as_rendered but turns.call_format is tags, whose results stand in the "
            "model's own message: no chat template renders them. Set turns.call_format to hermes, llama "
            "or fenced, or prompt.history to as_sampled."
        )
    if prompt.writes_text():
        raise ValueError(
            f"prompt.history is as_rendered but prompt.template {str(prompt.template)[:80]!r} writes "
            f"text, which the chat template never sees. Set prompt.template to chat, or leave it out "
            f"where rows have chat messages."
        )
