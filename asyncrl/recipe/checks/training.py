"""Checks of the loss, the critic, adapters and agreement against the sections that feed and step them."""

from typing import TYPE_CHECKING, Any

from asyncrl.recipe.algorithm_terms import BATCH_ADVANTAGES, Gae, PassAtK
from asyncrl.recipe.checks.sampling import check_mini_batches
from asyncrl.recipe.sections.model import RATE_FACTOR
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.sections.trainer import Trainer
from asyncrl.recipe.server_options import option_names
from asyncrl.recipe.terms import chosen

if TYPE_CHECKING:
    from asyncrl.recipe.recipe import Recipe

RATE = "learning_rate"
OTHER_KERNELS = frozenset(
    f"--{name}"
    for name in (
        *("attention-backend", "prefill-attention-backend", "decode-attention-backend", "sampling-backend"),
        *("enable-deterministic-inference", "bf16-gemm-backend"),
    )
)
"""Options of a server that take its kernels from elsewhere."""


def check_staleness(recipe: "Recipe") -> None:
    algorithm, rollout, trainer = recipe.algorithm, recipe.rollout, recipe.trainer
    if trainer.splits_staleness and rollout.max_staleness == 0:
        raise ValueError(
            "trainer.splits_staleness is true but rollout.max_staleness is 0: no token is stale, so that all "
            "of them tell the mismatch. Remove trainer.splits_staleness, or set rollout.max_staleness to 1 "
            "or more."
        )
    if algorithm.proximal == "interpolated" and rollout.max_staleness == 0:
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


def check_advantage(recipe: "Recipe") -> None:
    if recipe.teacher.is_alone():
        return
    algorithm, rollout, agent = recipe.algorithm, recipe.rollout, recipe.agent
    advantage = algorithm.advantage
    if isinstance(advantage, PassAtK):
        _check_subsets(advantage, rollout)
    if advantage.name == "gdpo" and (rollout.pilot_samples or agent.verdict == "branch"):
        key = "rollout.pilot_samples" if rollout.pilot_samples else "agent.verdict"
        told = "a pilot is" if rollout.pilot_samples else "branches are"
        raise ValueError(
            f"{key} is set but algorithm.advantage is gdpo: {told} judged by one number, not by the "
            f"named scores of whole responses. Remove {key}, or set algorithm.advantage to another one, "
            f"such as grpo."
        )
    if agent.roles:
        _check_roles(recipe)
    if algorithm.credit == "turns" and not recipe.turns.is_on():
        raise ValueError(
            "algorithm.credit is turns but neither turns.environment nor turns.tools is set: every "
            "trajectory has one turn, which earns all there is. Remove algorithm.credit, or set one of "
            "the two."
        )
    if rollout.samples_per_group < algorithm.min_group_size():
        raise ValueError(
            f"rollout.samples_per_group is {rollout.samples_per_group} but algorithm.advantage "
            f"{advantage.name} needs the group's other trajectories as baseline. Set "
            f"rollout.samples_per_group to at least 2, or algorithm.advantage to gae, batch_mean, "
            f"reinforce_pp or remax."
        )


def _check_roles(recipe: "Recipe") -> None:
    """Refuses what is not defined for each role by itself."""
    algorithm, agent = recipe.algorithm, recipe.agent
    name = algorithm.advantage.name
    mixed = [
        ("algorithm.advantage", name, algorithm.needs_greedy() or name in BATCH_ADVANTAGES),
        ("algorithm.divides_by_batch_std", "true", algorithm.divides_by_batch_std),
        ("algorithm.kl.place", "reward", algorithm.has_kl_reward()),
    ]
    for key, value, is_set in mixed:
        if is_set:
            raise ValueError(
                f"agent.roles is {agent.roles} but {key} is {value}: its baseline or scale is not of one "
                f"role's rewards in its group. Set algorithm.advantage to grpo, dr_grpo or rloo, and leave "
                f"algorithm.divides_by_batch_std and algorithm.kl.place out."
            )


def _check_subsets(advantage: PassAtK, rollout: Rollout) -> None:
    if advantage.k > rollout.samples_per_group:
        raise ValueError(
            f"algorithm.advantage.k is {advantage.k} but rollout.samples_per_group is "
            f"{rollout.samples_per_group}: there are no {advantage.k} answers to take the best of. "
            f"Lower algorithm.advantage.k or raise rollout.samples_per_group."
        )
    if advantage.name == "pass_at_k_training" and advantage.k == rollout.samples_per_group:
        raise ValueError(
            f"algorithm.advantage.k is {advantage.k}, as is rollout.samples_per_group: a group has one "
            f"subset of that many answers, so that all advantages of pass_at_k_training would be 0. Lower "
            f"algorithm.advantage.k or raise rollout.samples_per_group."
        )


def check_divergence(recipe: "Recipe") -> None:
    kl = recipe.algorithm.kl
    if kl.coefficient and kl.estimator == "unbiased" and recipe.rollout.is_truncated():
        raise ValueError(
            "algorithm.kl.estimator is unbiased but rollout.top_k is set: a KL over all tokens has no "
            "unbiased estimate from samples of some. Set algorithm.kl.estimator to k2 or k3_plus, or "
            "leave rollout.top_k out."
        )


def check_routing_replay(recipe: "Recipe") -> None:
    algorithm, trainer = recipe.algorithm, recipe.trainer
    if algorithm.routing_replay != "proximal":
        return
    why, knob = "", ""
    if trainer.optimizer_steps_per_batch == 1:
        why = "trainer.optimizer_steps_per_batch is 1: the policy before the batch is the one that trains"
        knob = "trainer.optimizer_steps_per_batch to 2 or more"
    elif algorithm.proximal == "interpolated":
        why = "algorithm.proximal is interpolated: the policy before the batch computes nothing"
        knob = "algorithm.proximal to forward"
    if why:
        raise ValueError(
            f"algorithm.routing_replay is proximal but {why}. Set {knob}, or algorithm.routing_replay to "
            f"rollout or none."
        )


def check_critic(recipe: "Recipe") -> None:
    algorithm, critic, trainer = recipe.algorithm, recipe.critic, recipe.trainer
    if not algorithm.needs_critic():
        return
    steps, warmup_batches = recipe.critic_mini_batches(), recipe.critic_warmup_batches()
    check_mini_batches(recipe, "critic", steps)
    if steps != trainer.optimizer_steps_per_batch and algorithm.has_kl_reward():
        raise ValueError(
            f"critic.optimizer_steps_per_batch is {steps}, trainer.optimizer_steps_per_batch "
            f"{trainer.optimizer_steps_per_batch} and algorithm.kl.place reward: the KL is computed "
            f"for mini-batches that both share. Set the two to one number, or algorithm.kl.place to loss."
        )
    _check_v_trace(recipe, steps)
    if critic.value_range is not None and critic.value_range[0] >= critic.value_range[1]:
        low, high = critic.value_range
        raise ValueError(
            f"critic.value_range is [{low:g}, {high:g}], expected the lowest return and a higher one, such "
            f"as [0, 1]."
        )
    if warmup_batches >= trainer.num_steps:
        raise ValueError(
            f"critic.warmup_steps is {critic.warmup_steps} ({trainer.schedule_unit}) but "
            f"trainer.num_steps is {trainer.num_steps}: the policy would never train. Lower "
            f"critic.warmup_steps."
        )
    _check_warmup_run(recipe)


def _check_warmup_run(recipe: "Recipe") -> None:
    """The responses of another run are for the critic alone, and are no more than tokens and rewards."""
    critic = recipe.critic
    if critic.warmup_run is None:
        return
    if critic.warmup_steps == 0:
        raise ValueError(
            "critic.warmup_run is set but critic.warmup_steps is 0: none of its responses would be learned. "
            "Set critic.warmup_steps to the number of steps, or remove critic.warmup_run."
        )
    why = {
        "critic.targets is v_trace": (
            critic.targets == "v_trace",
            "whose ratios need the policies that sampled. Set it to gae",
        ),
        "rollout.pilot_samples is set": (
            recipe.rollout.pilot_samples is not None,
            "but the groups of that run are whole. Remove it",
        ),
        "replay.repeated_groups_per_batch is above 0": (
            recipe.replay.repeated_groups_per_batch > 0,
            "so the policy would learn that run's responses, too. Set it to 0",
        ),
        "turns or agent is on": (
            recipe.turns.is_on() or recipe.agent.is_on(),
            "but a response of that run is one turn. Remove the section",
        ),
    }
    for what, (holds, remedy) in why.items():
        if holds:
            raise ValueError(f"critic.warmup_run is set and {what}, {remedy}, or remove critic.warmup_run.")


def _check_v_trace(recipe: "Recipe", critic_steps: int) -> None:
    critic, trainer = recipe.critic, recipe.trainer
    if critic.targets != "v_trace":
        return
    if critic_steps != trainer.optimizer_steps_per_batch:
        raise ValueError(
            f"critic.optimizer_steps_per_batch is {critic_steps}, trainer.optimizer_steps_per_batch "
            f"{trainer.optimizer_steps_per_batch} and critic.targets v_trace: its ratios are of the "
            f"policy before the step, for mini-batches that both share. Set the two to one number, or "
            f"critic.targets to gae."
        )
    gae = chosen(recipe.algorithm.advantage, Gae)
    if critic.gae_lambda not in (None, gae.gae_lambda):
        raise ValueError(
            f"critic.gae_lambda is {critic.gae_lambda} and algorithm.advantage.gae_lambda "
            f"{gae.gae_lambda} but critic.targets is v_trace, whose targets give the policy its advantages: "
            f"there is one lambda. "
            f"Set the two to one number, or critic.targets to gae."
        )
    if gae.length_alpha is not None:
        raise ValueError(
            f"algorithm.advantage.length_alpha is {gae.length_alpha} but critic.targets is "
            f"v_trace, whose targets give the policy its advantages: there is no second lambda. Remove "
            f"algorithm.advantage.length_alpha, or set critic.targets to gae."
        )


def check_schedules(recipe: "Recipe") -> None:
    recipe.policy_schedule()
    if recipe.algorithm.needs_critic():
        recipe.critic_schedule()


def check_scaling(recipe: "Recipe") -> None:
    algorithm, trainer = recipe.algorithm, recipe.trainer
    is_unweighted = algorithm.importance_weight.name == "none" and algorithm.clip_around == "proximal"
    if trainer.learning_rate_scaling == "ess" and is_unweighted:
        raise ValueError(
            "trainer.learning_rate_scaling is ess but algorithm.importance_weight is none: the loss "
            "weighs no sequence more than another. Set algorithm.importance_weight, or "
            "trainer.learning_rate_scaling to none."
        )


def check_loss_scale(recipe: "Recipe") -> None:
    if recipe.model.dtype == "float16" and recipe.trainer.optimizer.name == "muon":
        raise ValueError(
            "trainer.optimizer is muon but model.dtype is float16: Muon's iterations are in bfloat16, and "
            "Megatron-core knows no Muon under a loss scale. Set model.dtype to bfloat16, or "
            "trainer.optimizer to adam."
        )


def check_entropy_control(recipe: "Recipe") -> None:
    algorithm, trainer = recipe.algorithm, recipe.trainer
    steps = trainer.optimizer_steps_per_batch
    has_ratios = algorithm.clip_around == "behavior" or algorithm.proximal == "interpolated"
    if algorithm.entropy_control.name == "kl_cov" and steps == 1 and not has_ratios:
        raise ValueError(
            "algorithm.entropy_control is kl_cov but trainer.optimizer_steps_per_batch is 1: every "
            "policy ratio is 1, so that there is nothing to pull back. Set "
            "trainer.optimizer_steps_per_batch to 2 or more, algorithm.clip_around to behavior, or "
            "algorithm.entropy_control to clip_cov."
        )


def check_agreement(recipe: "Recipe") -> None:
    model, serving, trainer, rollout = recipe.model, recipe.serving, recipe.trainer, recipe.rollout
    if not model.bitwise_agreement:
        return
    parallel = trainer.parallel
    for key, value, wanted, why in (
        *(
            (f"trainer.parallel.{name}", size, 1, "ranks that share a model sum in another order")
            for name, size in (
                ("tensor", parallel.tensor),
                ("pipeline", parallel.pipeline),
                ("context", parallel.context),
                ("expert", parallel.expert),
            )
        ),
        ("serving.tensor_parallel_size", serving.tensor_parallel_size, 1, "ranks sum in another order"),
        ("serving.quantization", serving.quantization, None, "the trainer computes in model.dtype"),
        ("serving.kv_cache_dtype", serving.kv_cache_dtype, None, "the trainer's keys are not rounded"),
        ("serving.threads_per_server", serving.threads_per_server, 1, "threads divide a sum"),
        ("trainer.threads_per_process", trainer.threads_per_process, 1, "threads divide a sum"),
        ("trainer.attention", trainer.attention, "auto", "servers and trainer share one kernel"),
        (
            "rollout.top_k",
            rollout.top_k,
            None,
            "the share of the tokens that a server keeps is summed otherwise",
        ),
    ):
        if value != wanted:
            raise ValueError(
                f"model.bitwise_agreement is true but {key} is {value}: {why}. Set {key} to "
                f"{'null' if wanted is None else wanted}, or model.bitwise_agreement to false."
            )
    for option in option_names(serving.extra_arguments):
        if option in OTHER_KERNELS:
            raise ValueError(
                f"model.bitwise_agreement is true but serving.extra_arguments has {option}, which changes "
                f"what servers compute with. Remove it, or set model.bitwise_agreement to false."
            )


def check_lora(recipe: "Recipe") -> None:
    model, algorithm, trainer = recipe.model, recipe.algorithm, recipe.trainer
    if model.lora is None:
        return
    _check_kernels(recipe)
    if trainer.optimizer.name == "muon":
        raise ValueError(
            "trainer.optimizer is muon but model.lora is set: Muon makes the update of a whole matrix "
            "orthogonal, and that of an adapter is a product of two. Set trainer.optimizer to adam, or "
            "remove model.lora."
        )
    states = ("exp_avg_dtype", "float32"), ("exp_avg_sq_dtype", "float32"), ("optimizer_cpu_offload", False)
    for key, default in states:
        if (value := getattr(trainer, key)) != default:
            raise ValueError(
                f"trainer.{key} is {str(value).lower()} but model.lora is set: the optimizer's states are "
                f"those of the adapters alone, too few to save on. Remove trainer.{key}, or model.lora."
            )
    if trainer.router.bias_update_rate:
        raise ValueError(
            f"trainer.router.bias_update_rate is {trainer.router.bias_update_rate:g} but model.lora is set: "
            f"with adapters the base model, biases of its routers included, stays as it is. Set it to 0, or "
            f"remove model.lora."
        )
    if algorithm.kl.refresh_steps:
        raise ValueError(
            f"algorithm.kl.refresh_steps is {algorithm.kl.refresh_steps} but model.lora is "
            f"set: the reference is the base model without the adapter, of which there is no second copy. "
            f"Set algorithm.kl.refresh_steps to 0, or remove model.lora."
        )


def _check_kernels(recipe: "Recipe") -> None:
    """Raises ValueError for what needs layers, or copies of them, without adapters."""
    model, trainer = recipe.model, recipe.trainer
    if model.bitwise_agreement:
        raise ValueError(
            "model.bitwise_agreement is true but model.lora is set: layers with adapters have no kernels "
            "that both engines share. Remove one of the two."
        )
    if model.dtype == "float16":
        raise ValueError(
            "model.dtype is float16 but model.lora is set: gradients of adapters have no loss scale. Set "
            "model.dtype to bfloat16 or float32, or remove model.lora."
        )
    if trainer.splits_staleness:
        raise ValueError(
            "trainer.splits_staleness is true but model.lora is set: older versions are kept as whole "
            "weights, not as adapters. Remove one of the two."
        )


def with_lora_rate(stated: Any, completed: Any) -> Any:
    """`completed`, plain data of a recipe that a preset has filled in, with the default learning rate of an
    adapter where `stated`, the recipe as it was, states none."""
    model = stated.get("model") if isinstance(stated, dict) else None
    trainer = stated.get("trainer") if isinstance(stated, dict) else None
    has_adapter = isinstance(model, dict) and isinstance(model.get("lora"), dict)
    if not has_adapter or not isinstance(trainer, dict | None) or RATE in (trainer or {}):
        return completed
    known = dict(completed.get("trainer") or {})
    rate = known.get(RATE, Trainer.model_fields[RATE].default)
    return {**completed, "trainer": {**known, RATE: RATE_FACTOR * rate}}
