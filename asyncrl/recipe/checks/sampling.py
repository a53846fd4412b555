"""Checks of what is sampled: the groups of a batch, turns and agents, and the templates of prompts."""

from typing import TYPE_CHECKING

from asyncrl.recipe.algorithm_terms import BATCH_ADVANTAGES, PassAtK
from asyncrl.recipe.sections.rollout import Rollout

if TYPE_CHECKING:
    from asyncrl.recipe.recipe import Recipe


def check_sizes(recipe: "Recipe") -> None:
    rollout, algorithm = recipe.rollout, recipe.algorithm
    # With summaries a trajectory has several contexts.
    context = None if recipe.turns.summarize is not None else recipe.model.context_tokens
    if context is not None and rollout.max_new_tokens >= context:
        raise ValueError(
            f"rollout.max_new_tokens is {rollout.max_new_tokens} but model.context_tokens is {context}: "
            f"no room is left for a prompt. Lower rollout.max_new_tokens or raise model.context_tokens."
        )
    capacity, group = recipe.serving.max_running_requests, recipe.trajectories_per_group()
    if group > capacity:
        raise ValueError(
            f"rollout.samples_per_group is {rollout.samples_per_group}, {group} requests per group, but "
            f"serving.max_running_requests is {capacity}: a group cannot run at once. Raise "
            f"serving.max_running_requests to at least {group}."
        )
    overlong = algorithm.overlong.buffer_tokens
    if overlong >= rollout.max_new_tokens:
        raise ValueError(
            f"algorithm.overlong.buffer_tokens is {overlong} but rollout.max_new_tokens is "
            f"{rollout.max_new_tokens}: every response would be penalized. Lower "
            f"algorithm.overlong.buffer_tokens."
        )
    check_mini_batches(recipe, "trainer", recipe.trainer.optimizer_steps_per_batch)


def check_mini_batches(recipe: "Recipe", section: str, steps: int) -> None:
    """Raises ValueError where some mini-batch of `section` would have nothing, or less than a group."""
    groups, samples = recipe.rollout.groups_per_batch, recipe.rollout.samples_per_group
    if steps <= groups or (recipe.trainer.mini_batch_order == "responses" and steps <= groups * samples):
        return
    raise ValueError(
        f"{section}.optimizer_steps_per_batch is {steps} but rollout.groups_per_batch is {groups}: an "
        f"optimizer step would have less than a group. Lower {section}.optimizer_steps_per_batch."
    )


def check_oversampling(recipe: "Recipe") -> None:
    rollout = recipe.rollout
    if rollout.oversampling is None:
        return
    if rollout.interrupt == "drain":
        raise ValueError(
            f"rollout.oversampling is {rollout.oversampling} but rollout.interrupt is drain: stragglers "
            f"would resume with the next version, and drain keeps a trajectory to one. "
            f"Remove one of the two."
        )
    if rollout.oversampling > 1 and rollout.max_staleness == 0:
        raise ValueError(
            f"rollout.oversampling is {rollout.oversampling} but rollout.max_staleness is 0: stragglers "
            f"could never be trained. Set rollout.max_staleness to 1 or more."
        )


def check_repetition(recipe: "Recipe") -> None:
    replay, rollout = recipe.replay, recipe.rollout
    if replay.repeated_groups_per_batch and rollout.max_staleness == 0:
        raise ValueError(
            f"replay.repeated_groups_per_batch is {replay.repeated_groups_per_batch} but "
            f"rollout.max_staleness is 0: nothing may be trained twice. Set "
            f"rollout.max_staleness to 1 or more."
        )
    most = (replay.max_uses - 1) * rollout.groups_per_batch
    if replay.repeated_groups_per_batch > most:
        raise ValueError(
            f"replay.repeated_groups_per_batch is {replay.repeated_groups_per_batch} but with "
            f"replay.max_uses {replay.max_uses} and rollout.groups_per_batch {rollout.groups_per_batch} "
            f"at most {most} are possible. Lower it, or raise replay.max_uses."
        )


def check_pilot(recipe: "Recipe") -> None:
    algorithm, rollout = recipe.algorithm, recipe.rollout
    pilot = rollout.pilot_samples
    if pilot is None:
        if rollout.pilot_min_chance != Rollout.model_fields["pilot_min_chance"].default:
            raise ValueError(
                f"rollout.pilot_min_chance is {rollout.pilot_min_chance:g} but rollout.pilot_samples is "
                f"not set: groups have no pilot. Set rollout.pilot_samples, or leave it out."
            )
        return
    if pilot >= rollout.samples_per_group:
        raise ValueError(
            f"rollout.pilot_samples is {pilot} but rollout.samples_per_group is "
            f"{rollout.samples_per_group}: nothing is left to extend a group by. Lower "
            f"rollout.pilot_samples, or leave it out."
        )
    if algorithm.always_teaches() or algorithm.needs_greedy():
        raise ValueError(
            f"rollout.pilot_samples is {pilot} but with algorithm.advantage {algorithm.advantage.name} a "
            f"group has a gradient even if all its rewards are equal: none is worth stopping. Leave "
            f"rollout.pilot_samples out, or set algorithm.advantage to one with a group baseline, such "
            f"as grpo."
        )
    advantage = algorithm.advantage
    if isinstance(advantage, PassAtK) and advantage.k > pilot:
        raise ValueError(
            f"algorithm.advantage.k is {advantage.k} but rollout.pilot_samples is {pilot}: a group that "
            f"ends with its pilot has no {advantage.k} answers to take the best of. Raise "
            f"rollout.pilot_samples, or lower algorithm.advantage.k."
        )


def check_mixture(recipe: "Recipe") -> None:
    if recipe.data.mixture.rebalance == "signal" and recipe.rollout.samples_per_group == 1:
        raise ValueError(
            "data.mixture.rebalance is signal but rollout.samples_per_group is 1: a single answer never "
            "has two rewards, so no source has a signal. Raise rollout.samples_per_group, or leave "
            "data.mixture out."
        )


def check_drops(recipe: "Recipe") -> None:
    algorithm = recipe.algorithm
    if not recipe.replay.drops_no_signal or recipe.teacher.is_on():
        return
    if recipe.trajectories_per_group() == 1:
        raise ValueError(
            "replay.drops_no_signal is true but rollout.samples_per_group is 1: a single trajectory has "
            "nothing to differ from, so every group would be dropped. Set "
            "replay.drops_no_signal to false."
        )
    if algorithm.always_teaches():
        raise ValueError(
            f"replay.drops_no_signal is true but with algorithm.advantage {algorithm.advantage.name} a "
            f"group has a gradient even if all its rewards are equal. Set replay.drops_no_signal to "
            f"false, or algorithm.advantage to one with a group baseline, such as grpo."
        )


def check_agent(recipe: "Recipe") -> None:
    agent, turns = recipe.agent, recipe.turns
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


def check_template_arguments(recipe: "Recipe") -> None:
    prompt, turns, agent = recipe.prompt, recipe.turns, recipe.agent
    if prompt is None or not prompt.chat_template_kwargs or not prompt.writes_text():
        return
    if not turns.is_on() and not agent.is_on():
        raise ValueError(
            f"prompt.chat_template_kwargs is set but prompt.template {str(prompt.template)[:80]!r} "
            f"writes text, which the chat template never sees. Set prompt.template to chat, or remove "
            f"prompt.chat_template_kwargs."
        )


def check_history(recipe: "Recipe") -> None:
    prompt, turns, agent = recipe.prompt, recipe.turns, recipe.agent
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


def check_summaries(recipe: "Recipe") -> None:
    prompt, turns, agent, model = recipe.prompt, recipe.turns, recipe.agent, recipe.model
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


def check_untrained_summaries(recipe: "Recipe") -> None:
    turns, algorithm = recipe.turns, recipe.algorithm
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
