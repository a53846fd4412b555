"""The section `placement`."""

from typing import Literal

from pydantic import model_validator

from asyncrl.recipe.section import Count, Section


class Placement(Section):
    """Which GPUs of this machine the processes get. Numbers count from 0 what nvidia-smi lists, or what
    CUDA_VISIBLE_DEVICES names where it is set. By default trainer ranks get the first GPUs, servers the next,
    then evaluation servers; each GPU belongs to one process. `asyncrl check` prints the map."""

    device: Literal["auto", "gpu", "cpu"] = "auto"
    """What servers and trainer compute on.
    auto: GPUs where this machine has any, else the CPU.
    gpu: GPUs; a machine without one is refused.
    cpu: the CPU, also where there are GPUs; they are hidden from every process."""
    trainer: list[Count] = []
    """One GPU per trainer rank, in the order of ranks."""
    servers: list[Count] = []
    """GPUs of the local rollout servers, serving.tensor_parallel_size each."""
    evaluation: list[Count] = []
    """GPUs of the evaluation servers (evaluation.num_servers), serving.tensor_parallel_size each."""

    @model_validator(mode="after")
    def _check(self) -> "Placement":
        owners: dict[int, str] = {}
        for key in ("trainer", "servers", "evaluation"):
            numbers: list[int] = getattr(self, key)
            if numbers and self.device == "cpu":
                raise ValueError(
                    f"placement.{key} is {numbers} but placement.device is cpu. Remove one of the two."
                )
            for number in numbers:
                if owners.get(number) == key:
                    raise ValueError(f"placement.{key} names GPU {number} twice. Name each GPU once.")
                if number in owners:
                    raise ValueError(
                        f"placement.{owners[number]} and placement.{key} both name GPU {number}. Sharing one "
                        f"is not supported: a server keeps its memory while the trainer steps. Name another "
                        f"GPU in one of the two."
                    )
                owners[number] = key
        return self
