"""The section `placement`."""

from typing import Literal

from pydantic import model_validator

from asyncrl.recipe.sections.section import Count, Section


class Placement(Section):
    """Which process gets which GPUs of this machine. Numbers count from 0 in the list of nvidia-smi, or of
    CUDA_VISIBLE_DEVICES if that is set. By default trainer ranks get the first GPUs, servers the next, then
    evaluation servers, the teacher and opponents; each GPU belongs to one process, unless colocated. `asyncrl
    check` prints the map."""

    device: Literal["auto", "gpu", "cpu"] = "auto"
    """Device that servers and trainer compute on.
    auto: GPUs if this machine has any, else the CPU.
    gpu: GPUs; a machine without one is refused.
    cpu: the CPU, even if there are GPUs; they are hidden from every process."""
    colocated: bool = False
    """Trainer ranks and local rollout servers share GPUs, for machines with one or two. Servers sleep while
    the trainer steps: they release weights and KV cache, and wake with the new weights. In-flight
    trajectories then resume from their prefixes, or end before the step with rollout.interrupt drain.
    Evaluation servers, the teacher and opponents keep their own GPUs. Works on a CPU too."""
    trainer: list[Count] = []
    """One GPU per trainer rank, in the order of ranks."""
    servers: list[Count] = []
    """GPUs of the local rollout servers, serving.tensor_parallel_size each; with `colocated` some of the
    trainer's, by default the first."""
    evaluation: list[Count] = []
    """GPUs of the evaluation servers (evaluation.num_servers), serving.tensor_parallel_size each."""
    teacher: list[Count] = []
    """GPUs of the run's own teacher, teacher.tensor_parallel_size."""
    opponents: list[Count] = []
    """GPUs of agent.opponents in their order, serving.tensor_parallel_size each."""

    @model_validator(mode="after")
    def _check(self) -> "Placement":
        owners: dict[int, str] = {}
        for key in ("trainer", "servers", "evaluation", "teacher", "opponents"):
            numbers: list[int] = getattr(self, key)
            if numbers and self.device == "cpu":
                raise ValueError(
                    f"placement.{key} is {numbers} but placement.device is cpu. Remove one of the two."
                )
            for number in numbers:
                if owners.get(number) == key:
                    raise ValueError(f"placement.{key} names GPU {number} twice. Name each GPU once.")
                if number in owners and not (self.colocated and key == "servers"):
                    raise ValueError(
                        f"placement.{owners[number]} and placement.{key} both name GPU {number}. Name "
                        f"another GPU in one of the two, or let trainer and rollout servers share with "
                        f"placement.colocated."
                    )
                owners[number] = key
        if self.colocated and self.trainer and not set(self.servers) <= set(self.trainer):
            raise ValueError(
                f"placement.colocated is true, but placement.servers {self.servers} are not all among "
                f"placement.trainer {self.trainer}: a server that shares no GPU would sleep for nothing. "
                f"Name GPUs of the trainer, or set placement.colocated to false."
            )
        return self
