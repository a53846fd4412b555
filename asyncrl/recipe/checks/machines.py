"""Checks of the GPUs that processes get, and of how local servers divide and round a model."""

from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.cluster import Cluster
from asyncrl.recipe.sections.evaluation import Evaluation
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.placement import Placement
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.sections.teacher import Teacher
from asyncrl.recipe.sections.trainer import Trainer


def check_placement(
    placement: Placement,
    serving: Serving,
    trainer: Trainer,
    evaluation: Evaluation,
    teacher: Teacher,
    agent: Agent,
    cluster: Cluster,
) -> None:
    size = serving.tensor_parallel_size
    if serving.servers and placement.servers:
        raise ValueError(
            f"placement.servers is {placement.servers} but serving.servers names servers that are "
            f"already running. Remove placement.servers, or serving.servers to start local ones."
        )
    for key, count, why in (
        ("trainer", trainer.num_processes, "trainer.num_processes"),
        ("servers", serving.num_servers * size, "serving.num_servers x serving.tensor_parallel_size"),
        (
            "evaluation",
            evaluation.num_servers * size,
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
        check_colocated(serving, trainer, cluster)


def check_colocated(serving: Serving, trainer: Trainer, cluster: Cluster) -> None:
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


def check_servers(model: Model, serving: Serving) -> None:
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
