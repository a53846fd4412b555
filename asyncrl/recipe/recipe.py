"""A whole recipe, and what its sections must be together."""

import itertools
from pathlib import Path
from typing import Annotated, Any

from pydantic import model_validator

from asyncrl.recipe.markers import CHANGEABLE, OBJECT, PATH, TASK_ROWS
from asyncrl.recipe.presets import with_preset
from asyncrl.recipe.schedule import Schedule, make_schedule
from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.alarms import Alarms
from asyncrl.recipe.sections.algorithm import PASS_AT_K_ADVANTAGES, Algorithm
from asyncrl.recipe.sections.cluster import Cluster
from asyncrl.recipe.sections.critic import Critic
from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.evaluation import Evaluation
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.placement import Placement
from asyncrl.recipe.sections.prepare import Prepare
from asyncrl.recipe.sections.prompt import Prompt
from asyncrl.recipe.sections.replay import Replay
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.sections.section import PositiveFloat, Section, Seed
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.sections.trackers import Trackers
from asyncrl.recipe.sections.trainer import Trainer
from asyncrl.recipe.sections.turns import Turns
from asyncrl.recipe.sections.verifying import Verifying
from asyncrl.recipe.sections.view import View
from asyncrl.recipe.sources import check_shared_tasks


class Recipe(Section):
    """One run."""

    name: str
    """Name of the run folder."""
    seed: Seed = 0
    """Seeds data order, initialization and, where the engine allows it, sampling."""
    run_folder: Annotated[str, PATH, CHANGEABLE] = "runs/{name}"
    """Output folder, relative to the recipe's folder; {name} is replaced. Running again on it resumes."""
    memory_gib: Annotated[PositiveFloat | None, CHANGEABLE] = None
    """Memory of this machine that the run may use. A run planned to need more is refused.
    Default: what is free at the start, or what a control group (container, Slurm) leaves."""
    prepare: Annotated[Prepare | None, CHANGEABLE] = None
    model: Model
    data: Data
    prompt: Annotated[Prompt | None, TASK_ROWS] = None
    verifying: Verifying = Verifying()
    rollout: Rollout = Rollout()
    turns: Turns = Turns()
    agent: Agent = Agent()
    replay: Replay = Replay()
    serving: Annotated[Serving, CHANGEABLE] = Serving()
    cluster: Annotated[Cluster, CHANGEABLE] = Cluster()
    algorithm: Algorithm = Algorithm()
    critic: Critic = Critic()
    trainer: Trainer = Trainer()
    evaluation: Annotated[Evaluation, CHANGEABLE] = Evaluation()
    alarms: Annotated[Alarms, CHANGEABLE] = Alarms()
    placement: Annotated[Placement, CHANGEABLE] = Placement()
    view: Annotated[View, CHANGEABLE] = View()
    trackers: Annotated[Trackers, OBJECT, CHANGEABLE] = []
    """Other places that the run's numbers are sent to: names, or mappings with settings. Each runs in its own
    process, so one that hangs or fails does not hold up the run. Needs `make setup TRACKERS=1`."""

    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_folder.replace("{name}", self.name))

    def groups_per_step(self) -> int:
        """Most groups that a step trains on, repeated ones included."""
        return self.rollout.groups_per_batch + self.replay.repeated_groups_per_batch

    def trajectories_per_group(self) -> int:
        """Sampled ones, plus the greedy one if the advantage needs it."""
        return self.rollout.samples_per_group + self.algorithm.needs_greedy()

    def has_template(self) -> bool:
        """Whether prompts go through a template of the recipe."""
        return self.prompt is not None and self.prompt.template is not None

    def chat_template_kwargs(self) -> dict[str, Any]:
        """Variables that the model's chat template is told."""
        return {} if self.prompt is None else self.prompt.chat_template_kwargs

    def renders_history(self) -> bool:
        """Whether the chat template renders the context of each turn."""
        return self.prompt is not None and self.prompt.history == "as_rendered"

    def longest_response(self) -> int:
        """Tokens behind the prompt at most, observed ones included; the context may allow fewer."""
        turns = self.turns
        num_observed = (turns.max_turns - 1) * turns.max_observed_tokens if turns.is_on() else 0
        return self.rollout.max_new_tokens + num_observed

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, raw: Any) -> Any:
        return with_preset(raw)

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        self._check_sizes()
        self._check_oversampling()
        self._check_template_arguments()
        self._check_history()
        self._check_agent()
        self._check_staleness()
        self._check_repetition()
        self._check_advantage()
        self._check_divergence()
        self._check_pilot()
        self._check_mixture()
        self._check_critic()
        self.policy_schedule()
        self._check_scaling()
        self._check_entropy_control()
        self._check_drops()
        self._check_evaluation()
        self._check_placement()
        return self

    def critic_steps_per_batch(self) -> int:
        """Optimizer steps of the critic on each batch."""
        return self.critic.optimizer_steps_per_batch or self.trainer.optimizer_steps_per_batch

    def critic_warmup_batches(self) -> int:
        """First batches that train the critic alone."""
        warmup = self.critic.warmup_steps
        if self.trainer.schedule_unit == "optimizer_steps":
            return -(-warmup // self.critic_steps_per_batch())
        return warmup

    def policy_schedule(self) -> Schedule:
        """Learning rates of the policy, which begin when the critic's warm-up is over."""
        trainer = self.trainer
        return make_schedule(
            trainer,
            trainer.learning_rate,
            steps_per_batch=trainer.optimizer_steps_per_batch,
            first_version=self.critic_warmup_batches() if self.algorithm.needs_critic() else 0,
        )

    def critic_schedule(self) -> Schedule:
        """Learning rates of the critic, of the same shape."""
        steps = self.critic_steps_per_batch()
        return make_schedule(self.trainer, self.critic.learning_rate, steps_per_batch=steps)

    def _check_scaling(self) -> None:
        algorithm = self.algorithm
        is_unweighted = algorithm.importance_weight == "none" and algorithm.clip_around == "proximal"
        if self.trainer.learning_rate_scaling == "ess" and is_unweighted:
            raise ValueError(
                "trainer.learning_rate_scaling is ess but algorithm.importance_weight is none: the loss "
                "weighs no sequence more than another. Set algorithm.importance_weight, or "
                "trainer.learning_rate_scaling to none."
            )

    def _check_entropy_control(self) -> None:
        algorithm, steps = self.algorithm, self.trainer.optimizer_steps_per_batch
        has_ratios = algorithm.clip_around == "behavior" or algorithm.proximal == "interpolated"
        if algorithm.entropy_control == "kl_cov" and steps == 1 and not has_ratios:
            raise ValueError(
                "algorithm.entropy_control is kl_cov but trainer.optimizer_steps_per_batch is 1: every "
                "policy ratio is 1, so that there is nothing to pull back. Set "
                "trainer.optimizer_steps_per_batch to 2 or more, algorithm.clip_around to behavior, or "
                "algorithm.entropy_control to clip_cov."
            )

    def _check_sizes(self) -> None:
        rollout, context = self.rollout, self.model.context_tokens
        if context is not None and rollout.max_new_tokens >= context:
            raise ValueError(
                f"rollout.max_new_tokens is {rollout.max_new_tokens} but model.context_tokens is {context}: "
                f"no room is left for a prompt. Lower rollout.max_new_tokens or raise model.context_tokens."
            )
        capacity, group = self.serving.max_running_requests, self.trajectories_per_group()
        if group > capacity:
            raise ValueError(
                f"rollout.samples_per_group is {rollout.samples_per_group}, {group} requests per group, but "
                f"serving.max_running_requests is {capacity}: a group cannot run at once. Raise "
                f"serving.max_running_requests to at least {group}."
            )
        overlong = self.algorithm.overlong_buffer_tokens
        if overlong >= rollout.max_new_tokens:
            raise ValueError(
                f"algorithm.overlong_buffer_tokens is {overlong} but rollout.max_new_tokens is "
                f"{rollout.max_new_tokens}: every response would be penalized. Lower "
                f"algorithm.overlong_buffer_tokens."
            )
        self._check_mini_batches("trainer", self.trainer.optimizer_steps_per_batch)

    def _check_mini_batches(self, section: str, steps: int) -> None:
        """Raises ValueError where some mini-batch of `section` would have nothing, or less than a group."""
        groups, samples = self.rollout.groups_per_batch, self.rollout.samples_per_group
        if steps <= groups or (self.trainer.mini_batch_order == "responses" and steps <= groups * samples):
            return
        raise ValueError(
            f"{section}.optimizer_steps_per_batch is {steps} but rollout.groups_per_batch is {groups}: an "
            f"optimizer step would have less than a group. Lower {section}.optimizer_steps_per_batch."
        )

    def _check_agent(self) -> None:
        agent, turns = self.agent, self.turns
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

    def _check_template_arguments(self) -> None:
        prompt = self.prompt
        if prompt is None or not prompt.chat_template_kwargs or not prompt.writes_text():
            return
        if not self.turns.is_on() and not self.agent.is_on():
            raise ValueError(
                f"prompt.chat_template_kwargs is set but prompt.template {str(prompt.template)[:80]!r} "
                f"writes text, which the chat template never sees. Set prompt.template to chat, or remove "
                f"prompt.chat_template_kwargs."
            )

    def _check_history(self) -> None:
        prompt, turns = self.prompt, self.turns
        if prompt is None or not self.renders_history():
            return
        if self.agent.is_on():
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

    def _check_oversampling(self) -> None:
        rollout = self.rollout
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

    def _check_staleness(self) -> None:
        rollout = self.rollout
        if self.algorithm.proximal == "interpolated" and rollout.max_staleness == 0:
            raise ValueError(
                "algorithm.proximal is interpolated but rollout.max_staleness is 0: no token is stale, so "
                "that every policy ratio would be 1 and nothing clipped. Remove algorithm.proximal, or set "
                "rollout.max_staleness to 1 or more."
            )
        for key in ("abort_staleness", "mask_staleness"):
            limit = getattr(rollout, key)
            if limit is not None and limit >= rollout.max_staleness:
                raise ValueError(
                    f"rollout.{key} is {limit} but rollout.max_staleness is {rollout.max_staleness}: nothing "
                    f"is ever that stale. Lower rollout.{key} below rollout.max_staleness, or remove it."
                )

    def _check_repetition(self) -> None:
        replay, rollout = self.replay, self.rollout
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

    def _check_advantage(self) -> None:
        algorithm, rollout = self.algorithm, self.rollout
        takes_best = algorithm.advantage in PASS_AT_K_ADVANTAGES
        if takes_best and algorithm.pass_k > rollout.samples_per_group:
            raise ValueError(
                f"algorithm.pass_k is {algorithm.pass_k} but rollout.samples_per_group is "
                f"{rollout.samples_per_group}: there are no {algorithm.pass_k} answers to take the best of. "
                f"Lower algorithm.pass_k or raise rollout.samples_per_group."
            )
        if algorithm.advantage == "pass_at_k_training" and algorithm.pass_k == rollout.samples_per_group:
            raise ValueError(
                f"algorithm.pass_k is {algorithm.pass_k}, as is rollout.samples_per_group: a group has one "
                f"subset of so many answers, so that all advantages of pass_at_k_training would be 0. Lower "
                f"algorithm.pass_k or raise rollout.samples_per_group."
            )
        if algorithm.advantage == "gdpo" and (rollout.pilot_samples or self.agent.verdict == "branch"):
            key = "rollout.pilot_samples" if rollout.pilot_samples else "agent.verdict"
            told = "a pilot is" if rollout.pilot_samples else "branches are"
            raise ValueError(
                f"{key} is set but algorithm.advantage is gdpo: {told} judged by one number, not by the "
                f"named scores of whole responses. Remove {key}, or set algorithm.advantage to another one, "
                f"such as grpo."
            )
        if algorithm.credit == "turns" and not self.turns.is_on():
            raise ValueError(
                "algorithm.credit is turns but neither turns.environment nor turns.tools is set: every "
                "trajectory has one turn, which earns all there is. Remove algorithm.credit, or set one of "
                "the two."
            )
        if rollout.samples_per_group < algorithm.min_group_size():
            raise ValueError(
                f"rollout.samples_per_group is {rollout.samples_per_group} but algorithm.advantage "
                f"{algorithm.advantage} needs the group's other trajectories as baseline. Set "
                f"rollout.samples_per_group to at least 2, or algorithm.advantage to gae, reinforce_pp or "
                f"remax."
            )

    def _check_divergence(self) -> None:
        algorithm = self.algorithm
        if algorithm.kl_coefficient and algorithm.kl_estimator == "unbiased" and self.rollout.is_truncated():
            raise ValueError(
                "algorithm.kl_estimator is unbiased but rollout.top_k is set: a KL over all tokens has no "
                "unbiased estimate from samples of some. Set algorithm.kl_estimator to k2 or k3_plus, or "
                "leave rollout.top_k out."
            )

    def _check_pilot(self) -> None:
        algorithm, rollout = self.algorithm, self.rollout
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
                f"rollout.pilot_samples is {pilot} but with algorithm.advantage {algorithm.advantage} a "
                f"group has a gradient even if all its rewards are equal: none is worth stopping. Leave "
                f"rollout.pilot_samples out, or set algorithm.advantage to one with a group baseline, such "
                f"as grpo."
            )
        if algorithm.advantage in PASS_AT_K_ADVANTAGES and algorithm.pass_k > pilot:
            raise ValueError(
                f"algorithm.pass_k is {algorithm.pass_k} but rollout.pilot_samples is {pilot}: a group that "
                f"ends with its pilot has no {algorithm.pass_k} answers to take the best of. Raise "
                f"rollout.pilot_samples, or lower algorithm.pass_k."
            )

    def _check_mixture(self) -> None:
        if self.data.mixture.rebalance == "signal" and self.rollout.samples_per_group == 1:
            raise ValueError(
                "data.mixture.rebalance is signal but rollout.samples_per_group is 1: a single answer never "
                "has two rewards, so no source has a signal. Raise rollout.samples_per_group, or leave "
                "data.mixture out."
            )

    def _check_critic(self) -> None:
        if not self.algorithm.needs_critic():
            return
        steps = self.critic_steps_per_batch()
        self._check_mini_batches("critic", steps)
        if steps != self.trainer.optimizer_steps_per_batch and self.algorithm.has_kl_reward():
            raise ValueError(
                f"critic.optimizer_steps_per_batch is {steps}, trainer.optimizer_steps_per_batch "
                f"{self.trainer.optimizer_steps_per_batch} and algorithm.kl_in reward: the KL is computed "
                f"for mini-batches that both share. Set the two to one number, or algorithm.kl_in to loss."
            )
        self._check_v_trace(steps)
        if self.critic_warmup_batches() >= self.trainer.num_steps:
            raise ValueError(
                f"critic.warmup_steps is {self.critic.warmup_steps} ({self.trainer.schedule_unit}) but "
                f"trainer.num_steps is {self.trainer.num_steps}: the policy would never train. Lower "
                f"critic.warmup_steps."
            )
        self.critic_schedule()

    def _check_v_trace(self, critic_steps: int) -> None:
        if self.critic.targets != "v_trace":
            return
        if critic_steps != self.trainer.optimizer_steps_per_batch:
            raise ValueError(
                f"critic.optimizer_steps_per_batch is {critic_steps}, trainer.optimizer_steps_per_batch "
                f"{self.trainer.optimizer_steps_per_batch} and critic.targets v_trace: its ratios are of the "
                f"policy before the step, for mini-batches that both share. Set the two to one number, or "
                f"critic.targets to gae."
            )
        if self.algorithm.gae_length_alpha is not None:
            raise ValueError(
                f"algorithm.gae_length_alpha is {self.algorithm.gae_length_alpha} but critic.targets is "
                f"v_trace, whose targets give the policy its advantages: there is no second lambda. Remove "
                f"algorithm.gae_length_alpha, or set critic.targets to gae."
            )

    def _check_drops(self) -> None:
        if not self.replay.drops_no_signal:
            return
        if self.trajectories_per_group() == 1:
            raise ValueError(
                "replay.drops_no_signal is true but rollout.samples_per_group is 1: a single trajectory has "
                "nothing to differ from, so every group would be dropped. Set "
                "replay.drops_no_signal to false."
            )
        if self.algorithm.always_teaches():
            raise ValueError(
                f"replay.drops_no_signal is true but with algorithm.advantage {self.algorithm.advantage} a "
                f"group has a gradient even if all its rewards are equal. Set replay.drops_no_signal to "
                f"false, or algorithm.advantage to one with a group baseline, such as grpo."
            )

    def _check_evaluation(self) -> None:
        evaluation = self.evaluation
        evaluation.check_all(self.model.context_tokens)
        gives = "turns.environment" if self.turns.environment is not None else None
        gives = "agent.may_give_verdict" if self.agent.may_give_verdict else gives
        if evaluation.has_grader() and gives is not None:
            raise ValueError(
                f"evaluation.verifier, or that of a set, is set but so is {gives}, and the verdict from "
                f"there is the one that counts. Remove evaluation.verifier, or {gives}."
            )
        for trained, each in itertools.product(self.data.train_sources(), evaluation.sets):
            for asked in each.heldout_sources():
                check_shared_tasks(trained, asked, f"evaluation.sets {each.title()}")
        if evaluation.stop_at_accuracy is not None and not evaluation.every_steps:
            raise ValueError(
                "evaluation.stop_at_accuracy is set but evaluation.every_steps is 0, so nothing is measured "
                "during training. Set evaluation.every_steps to 1 or more."
            )
        if self.trainer.keep_best and not evaluation.every_steps:
            raise ValueError(
                "trainer.keep_best is true but evaluation.every_steps is 0, so nothing is evaluated during "
                "training. Set evaluation.every_steps to 1 or more, or trainer.keep_best to false."
            )
        if evaluation.every_steps and self.data.heldout is None:
            raise ValueError(
                "evaluation.every_steps is set but data.heldout is missing. Name a held-out file in "
                "data.heldout, or set evaluation.every_steps to 0."
            )

    def _check_placement(self) -> None:
        serving, trainer = self.serving, self.trainer
        size = serving.tensor_parallel_size
        if serving.servers and self.placement.servers:
            raise ValueError(
                f"placement.servers is {self.placement.servers} but serving.servers names servers that are "
                f"already running. Remove placement.servers, or serving.servers to start local ones."
            )
        for key, count, why in (
            ("trainer", trainer.num_processes, "trainer.num_processes"),
            ("servers", serving.num_servers * size, "serving.num_servers x serving.tensor_parallel_size"),
            (
                "evaluation",
                self.evaluation.num_servers * size,
                "evaluation.num_servers x serving.tensor_parallel_size",
            ),
        ):
            numbers: list[int] = getattr(self.placement, key)
            if numbers and len(numbers) != count:
                raise ValueError(
                    f"placement.{key} names {len(numbers)} GPU(s), {numbers}, but {why} is {count}. Name "
                    f"{count}, or change what needs them."
                )
        if self.placement.colocated:
            self._check_colocated()

    def _check_colocated(self) -> None:
        serving, trainer = self.serving, self.trainer
        num_gpus = serving.num_servers * serving.tensor_parallel_size
        for is_wrong, what, remedy in (
            (
                bool(serving.servers),
                "serving.servers names servers that are already running, which share no GPU with the trainer",
                "serving.servers",
            ),
            (
                serving.weight_transport != "disk",
                f"serving.weight_transport is {serving.weight_transport}: servers sleep while the trainer "
                f"could send, and read the weights when they wake",
                "serving.weight_transport",
            ),
            (
                self.cluster.backend == "ray",
                "cluster.backend is ray, which gives each process its own GPUs",
                "cluster.backend",
            ),
            (
                num_gpus > trainer.num_processes,
                f"serving.num_servers x serving.tensor_parallel_size is {num_gpus} and trainer.num_processes "
                f"{trainer.num_processes}: a server that shares no GPU would sleep for nothing",
                "serving.num_servers",
            ),
        ):
            if is_wrong:
                raise ValueError(
                    f"placement.colocated is true but {what}. Change {remedy}, or set placement.colocated to "
                    f"false."
                )
