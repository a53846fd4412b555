"""Checks of the GPUs that processes get, of how local servers divide and round a model, of evaluations and of
the teacher."""

import itertools
from typing import TYPE_CHECKING

from asyncrl.recipe.sources import check_shared_tasks

if TYPE_CHECKING:
    from asyncrl.recipe.recipe import Recipe


def check_placement(recipe: "Recipe") -> None:
    placement, serving, agent = recipe.placement, recipe.serving, recipe.agent
    teacher, cluster = recipe.teacher, recipe.cluster
    size = serving.tensor_parallel_size
    if serving.servers and placement.servers:
        raise ValueError(
            f"placement.servers is {placement.servers} but serving.servers names servers that are "
            f"already running. Remove placement.servers, or serving.servers to start local ones."
        )
    for key, count, why in (
        ("trainer", recipe.trainer.num_processes, "trainer.num_processes"),
        ("servers", serving.num_servers * size, "serving.num_servers x serving.tensor_parallel_size"),
        (
            "evaluation",
            recipe.evaluation.num_servers * size,
            "evaluation.num_servers x serving.tensor_parallel_size",
        ),
        (
            "teacher",
            teacher.num_started() * teacher.tensor_parallel_size,
            "the number for the run's own teacher (teacher.tensor_parallel_size)",
        ),
        (
            "opponents",
            len(agent.opponents) * size,
            "that of agent.opponents x serving.tensor_parallel_size",
        ),
    ):
        numbers: list[int] = getattr(placement, key)
        if numbers and len(numbers) != count:
            raise ValueError(
                f"placement.{key} names {len(numbers)} GPU(s), {numbers}, but {why} is {count}. Name "
                f"{count}, or change what needs them."
            )
    if agent.opponents and cluster.backend == "ray" and not cluster.shared_disk:
        raise ValueError(
            "agent.opponents is set, cluster.backend is ray and cluster.shared_disk false: only the policy's "
            "model is handed to other nodes. Set cluster.shared_disk to true."
        )
    if teacher.num_started() and cluster.backend == "ray" and not cluster.shared_disk:
        raise ValueError(
            "teacher.path is set, cluster.backend is ray and cluster.shared_disk false: only the policy's "
            "model is handed to other nodes. Set teacher.url to a server of the teacher, or "
            "cluster.shared_disk to true."
        )
    if placement.colocated:
        _check_colocated(recipe)


def _check_colocated(recipe: "Recipe") -> None:
    serving, trainer, cluster = recipe.serving, recipe.trainer, recipe.cluster
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
            cluster.backend == "ray",
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


def check_servers(recipe: "Recipe") -> None:
    model, serving = recipe.model, recipe.serving
    ranks, groups = serving.tensor_parallel_size, serving.attention_data_parallel_size
    if ranks % groups:
        raise ValueError(
            f"serving.attention_data_parallel_size is {groups} but serving.tensor_parallel_size is {ranks}: "
            f"the ranks of a server form groups of one size. Set it to a divisor of {ranks}, or to 1."
        )
    experts = serving.expert_parallel_size
    if experts not in (1, ranks):
        raise ValueError(
            f"serving.expert_parallel_size is {experts} but serving.tensor_parallel_size is {ranks}: SGLang "
            f"deals experts to all ranks of a server or slices each for all. Set it to {ranks} or to 1."
        )
    for key in ("quantization", "kv_cache_dtype"):
        value = getattr(serving, key)
        if value is not None and model.dtype == "float32":
            raise ValueError(
                f"serving.{key} is {value} but model.dtype is float32: SGLang's kernels for FP8 give 16 "
                f"bits. Set model.dtype to bfloat16, or serving.{key} to null."
            )


def check_evaluation(recipe: "Recipe") -> None:
    evaluation, data, agent = recipe.evaluation, recipe.data, recipe.agent
    evaluation.check_all(recipe.model.context_tokens)
    gives = "turns.environment" if recipe.turns.environment is not None else None
    gives = "agent.may_give_verdict" if agent.may_give_verdict else gives
    if evaluation.has_grader() and gives is not None:
        raise ValueError(
            f"evaluation.verifier, or that of a set, is set but so is {gives}, and the verdict from "
            f"there is the one that counts. Remove evaluation.verifier, or {gives}."
        )
    for trained, each in itertools.product(data.train_sources(), evaluation.sets):
        for asked in each.heldout_sources():
            check_shared_tasks(trained, asked, f"evaluation.sets {each.title()}")
    if evaluation.stop_at_accuracy is not None and not evaluation.every_steps:
        raise ValueError(
            "evaluation.stop_at_accuracy is set but evaluation.every_steps is 0, so nothing is measured "
            "during training. Set evaluation.every_steps to 1 or more."
        )
    if recipe.trainer.keep_best and not evaluation.every_steps:
        raise ValueError(
            "trainer.keep_best is true but evaluation.every_steps is 0, so nothing is evaluated during "
            "training. Set evaluation.every_steps to 1 or more, or trainer.keep_best to false."
        )
    if evaluation.every_steps and data.heldout is None:
        raise ValueError(
            f"evaluation.every_steps is {evaluation.every_steps} but data.heldout is missing. Name a "
            "held-out file in data.heldout, or set evaluation.every_steps to 0."
        )


def check_teacher(recipe: "Recipe") -> None:
    """Raises ValueError where a term beside the teacher's would take its place or mean something else."""
    teacher, algorithm, rollout = recipe.teacher, recipe.algorithm, recipe.rollout
    data, agent = recipe.data, recipe.agent
    if not teacher.is_on():
        return
    if rollout.is_truncated():
        raise ValueError(
            "teacher.path is set but rollout.top_k, top_p or min_p is too: log-probs of the policy would be "
            "over the tokens that were kept, those of the teacher over all, and their difference no KL. "
            "Leave rollout.top_k, top_p and min_p out."
        )
    if algorithm.needs_critic():
        raise ValueError(
            "teacher.path is set but algorithm.advantage is gae: the critic gives each token an advantage "
            "of its own in place of the teacher's. Set algorithm.advantage to one without a critic, such as "
            "grpo."
        )
    if not teacher.is_alone():
        return
    if algorithm.needs_greedy():
        raise ValueError(
            f"teacher.with_reward is false but algorithm.advantage is {algorithm.advantage.name}, whose "
            "greedy responses are generated for their reward. Set teacher.with_reward to true, or "
            "algorithm.advantage to grpo, which nothing reads then."
        )
    judged = [
        ("algorithm.nll_coefficient", bool(algorithm.nll_coefficient)),
        ("rollout.pilot_samples", rollout.pilot_samples is not None),
        ("data.selection", data.selection.by != "uniform"),
        ("data.mixture.rebalance", data.mixture.rebalance != "never"),
        ("agent.verdict", agent.verdict == "branch"),
        ("agent.roles", bool(agent.roles)),
    ]
    for key, is_set in judged:
        if is_set:
            raise ValueError(
                f"{key} is set but teacher.with_reward is false: nothing judges training responses. Set "
                f"teacher.with_reward to true, or leave {key} out."
            )
