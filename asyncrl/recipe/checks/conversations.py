"""Checks of turns and agents, and of the templates that write what they read."""

from asyncrl.recipe.algorithm import Algorithm
from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.algorithm import BATCH_ADVANTAGES
from asyncrl.recipe.sections.model import Model
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


def check_summaries(prompt: Prompt | None, turns: Turns, agent: Agent, model: Model) -> None:
    asked = turns.summarize
    if asked is None:
        return
    if agent.is_on() or not turns.is_on():
        told = "an agent sums up its own history" if agent.is_on() else "one turn is never summed up"
        raise ValueError(
            f"turns.summarize is set but neither turns.environment nor turns.tools is: {told}. Remove "
            f"turns.summarize."
        )
    if prompt is not None and prompt.history == "as_rendered":
        raise ValueError(
            "turns.summarize is set but prompt.history is as_rendered: the context behind a summary repeats "
            "the last turns as they were sampled. Set prompt.history to as_sampled, or remove "
            "turns.summarize."
        )
    if turns.call_format == "tags":
        raise ValueError(
            "turns.summarize is set but turns.call_format is tags, whose results stand in the model's own "
            "message, where no summary can be asked for. Set turns.call_format to hermes, llama or fenced."
        )
    if prompt is not None and prompt.writes_text():
        raise ValueError(
            f"turns.summarize is set but prompt.template {str(prompt.template)[:80]!r} writes text, and a "
            f"summary goes into a chat message. Set prompt.template to chat, or leave it out where rows have "
            f"chat messages."
        )
    if 2 * asked.max_tokens > asked.at_tokens:
        raise ValueError(
            f"turns.summarize.max_tokens is {asked.max_tokens} but turns.summarize.at_tokens is "
            f"{asked.at_tokens}: half of it, {asked.at_tokens // 2}, is for turns behind the summary. Lower "
            f"turns.summarize.max_tokens, or raise turns.summarize.at_tokens."
        )
    if model.context_tokens is None:
        raise ValueError(
            "turns.summarize is set but model.context_tokens is not: summaries are for contexts with a "
            "limit. Set model.context_tokens, such as to twice turns.summarize.at_tokens."
        )
    room = model.context_tokens - asked.at_tokens
    needed = (turns.max_turn_tokens or 1) + turns.max_observed_tokens + asked.max_tokens
    if needed > room:
        raise ValueError(
            f"turns.summarize.at_tokens is {asked.at_tokens} and model.context_tokens "
            f"{model.context_tokens}: {room} tokens are left for the turn that reaches it "
            f"(turns.max_turn_tokens), its answer (turns.max_observed_tokens "
            f"{turns.max_observed_tokens}) and the summary (turns.summarize.max_tokens "
            f"{asked.max_tokens}), {needed} together. Lower "
            f"turns.summarize.at_tokens, or raise model.context_tokens."
        )


def check_untrained_summaries(turns: Turns, algorithm: Algorithm) -> None:
    if turns.summarize is None or turns.summarize.trains:
        return
    name = algorithm.advantage.name
    if name in BATCH_ADVANTAGES or algorithm.has_kl_reward():
        added = " with KL in the reward" if algorithm.has_kl_reward() else ""
        raise ValueError(
            f"turns.summarize.trains is false but algorithm.advantage is {name}{added}, which would change "
            f"the advantage of 0 that summaries have. Set algorithm.advantage to grpo, dr_grpo or rloo, or "
            f"remove turns.summarize.trains."
        )
