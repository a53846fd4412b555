"""Checks of the groups of a batch: their sizes, and which of them are sampled, repeated or dropped."""

from asyncrl.recipe.algorithm import Algorithm
from asyncrl.recipe.algorithm_terms import PassAtK
from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.replay import Replay
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.sections.trainer import Trainer


def check_sizes(
    rollout: Rollout, context: int | None, serving: Serving, algorithm: Algorithm, trainer: Trainer
) -> None:
    """`context`: most tokens of one trajectory; None where it may have several contexts."""
    if context is not None and rollout.max_new_tokens >= context:
        raise ValueError(
            f"rollout.max_new_tokens is {rollout.max_new_tokens} but model.context_tokens is {context}: "
            f"no room is left for a prompt. Lower rollout.max_new_tokens or raise model.context_tokens."
        )
    capacity, group = serving.max_running_requests, rollout.samples_per_group + algorithm.needs_greedy()
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
    check_mini_batches("trainer", trainer.optimizer_steps_per_batch, rollout, trainer)


def check_mini_batches(section: str, steps: int, rollout: Rollout, trainer: Trainer) -> None:
    """Raises ValueError where some mini-batch of `section` would have nothing, or less than a group."""
    groups, samples = rollout.groups_per_batch, rollout.samples_per_group
    if steps <= groups or (trainer.mini_batch_order == "responses" and steps <= groups * samples):
        return
    raise ValueError(
        f"{section}.optimizer_steps_per_batch is {steps} but rollout.groups_per_batch is {groups}: an "
        f"optimizer step would have less than a group. Lower {section}.optimizer_steps_per_batch."
    )


def check_oversampling(rollout: Rollout) -> None:
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


def check_repetition(replay: Replay, rollout: Rollout) -> None:
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


def check_pilot(algorithm: Algorithm, rollout: Rollout) -> None:
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


def check_mixture(data: Data, rollout: Rollout) -> None:
    if data.mixture.rebalance == "signal" and rollout.samples_per_group == 1:
        raise ValueError(
            "data.mixture.rebalance is signal but rollout.samples_per_group is 1: a single answer never "
            "has two rewards, so no source has a signal. Raise rollout.samples_per_group, or leave "
            "data.mixture out."
        )


def check_drops(replay: Replay, algorithm: Algorithm, rollout: Rollout) -> None:
    if not replay.drops_no_signal:
        return
    if rollout.samples_per_group + algorithm.needs_greedy() == 1:
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
