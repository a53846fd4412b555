"""How the trainer's processes share one model: parallel sizes from the recipe, checked against its shape.

Owns every rule on which sizes go together, and the environment variables of a rank. No torch, so that `check`
and the launcher know them too. Megatron numbers the ranks: tensor fastest, then context, data, pipeline.
"""

import os
from dataclasses import dataclass

from asyncrl.errors import InputError
from asyncrl.model.dtype import uses_gpu
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe, Trainer
from asyncrl.system.machine import KERNEL_CACHES

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Hardware queues between a process and its GPU. With one, kernels run in the order of their launch:
Megatron's tensor-parallel layers rely on it to begin a message before the product that hides it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the process grid; their product, `expert` aside, is the number of processes."""

    tensor: int = 1
    context: int = 1
    data: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    """Chunks of layers on each pipeline stage."""
    expert: int = 1
    """Ranks among which the experts of a layer are dealt; a part of tensor x context x data."""
    is_sequence_parallel: bool = False
    is_optimizer_distributed: bool = False
    overlaps_gradients: bool = False
    """Whether data-parallel ranks sum gradients during the backward pass."""
    overlaps_weights: bool = False
    """Whether data-parallel ranks gather weights during the forward pass."""
    bucket_size: int | None = None
    """Parameters per message that overlaps; None for Megatron's own."""

    def token_multiple(self) -> int:
        """Packed tokens of a micro-batch are padded to a multiple of this, to be split evenly."""
        return self.context * (self.tensor if self.is_sequence_parallel else 1)

    def micro_batch_multiple(self) -> int:
        """The interleaved schedule takes micro-batches in turns of as many as there are stages."""
        return self.pipeline if self.virtual_stages > 1 else 1

    def padded_vocabulary(self, size: int) -> int:
        """Rows of embedding and output layer: the same number on every tensor rank."""
        return -(-size // self.tensor) * self.tensor


ONE_PROCESS = Layout()


def make_layout(recipe: Recipe, *, on_gpu: bool | None = None) -> Layout:
    """The layout of a recipe that passed its own checks; what it leaves open depends on its device, which is
    that of this machine unless `on_gpu` says it."""
    section = recipe.trainer
    on_gpu = uses_gpu(recipe) if on_gpu is None else on_gpu
    parallel = section.parallel
    data = section.num_processes // (parallel.tensor * parallel.context * parallel.pipeline)
    is_distributed, overlaps_gradients = parallel.distributed_optimizer, parallel.overlap_grad_reduce
    if is_distributed is None:
        # Muon takes its steps on whole matrices.
        is_distributed = on_gpu and section.optimizer.name == "adam"
    if overlaps_gradients is None:
        # Context-parallel ranks share gradients and optimizer as data-parallel ones do.
        overlaps_gradients = is_distributed and data * parallel.context > 1 and on_gpu
    overlaps_weights = parallel.overlap_param_gather
    if overlaps_weights is None:
        overlaps_weights = overlaps_gradients and is_distributed and on_gpu
    return Layout(
        tensor=parallel.tensor,
        context=parallel.context,
        data=data,
        pipeline=parallel.pipeline,
        virtual_stages=parallel.virtual_stages,
        expert=parallel.expert,
        is_sequence_parallel=parallel.sequence_parallel,
        is_optimizer_distributed=is_distributed,
        overlaps_gradients=overlaps_gradients,
        overlaps_weights=overlaps_weights,
        bucket_size=parallel.ddp_bucket_size,
    )


def check_layout(recipe: Recipe, shape: ModelShape, *, on_gpu: bool | None = None) -> Layout:
    """The layout, if `shape` can be cut that way. Raises InputError with the key to change."""
    layout = make_layout(recipe, on_gpu=on_gpu)
    _check_divides("trainer.parallel.tensor", layout.tensor, "attention heads", shape.num_heads)
    _check_divides("trainer.parallel.tensor", layout.tensor, "key-value heads", shape.num_kv_heads)
    _check_divides("trainer.parallel.tensor", layout.tensor, "feed-forward columns", shape.ffn_size)
    shared = shape.shared_expert_size
    _check_divides("trainer.parallel.tensor", layout.tensor, "columns of the shared expert", shared)
    _check_delta_net(layout, shape)
    heads = shape.num_heads // layout.tensor
    _check_divides("trainer.parallel.context", layout.context, "attention heads per tensor rank", heads)
    stages = layout.pipeline * layout.virtual_stages
    keys = "trainer.parallel.pipeline x trainer.parallel.virtual_stages"
    _check_divides(keys, stages, "layers", shape.num_layers)
    _check_experts(layout, shape)
    _check_overlap(layout)
    return layout


def rank_environment(section: Trainer, rank: int, *, port: int, host: str = "127.0.0.1") -> dict[str, str]:
    """The variables, torchrun's and ours, under which a process is `rank` of the trainer.

    The ranks meet at `port` of `host`, where rank 0 is; a single process needs no rendezvous, hence no port
    that another run could hold.
    """
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(section.num_processes),
        "OMP_NUM_THREADS": str(section.threads_per_process),
        **KERNEL_CACHES,
        # What it prints is read while it runs.
        "PYTHONUNBUFFERED": "1",
    }
    if section.num_processes > 1:
        environment |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    if section.parallel.tensor > 1:
        environment[QUEUES] = os.environ.get(QUEUES, "1")
    return environment


def _check_delta_net(layout: Layout, shape: ModelShape) -> None:
    if shape.delta_net is None:
        return
    heads = shape.delta_net.num_key_heads
    _check_divides("trainer.parallel.tensor", layout.tensor, "key heads of linear attention", heads)
    if layout.context > 1:
        raise InputError(
            f"trainer.parallel.context is {layout.context}, but {shape.architecture} has layers of linear "
            f"attention, whose state runs through a sequence from rank to rank. Set it to 1, and "
            f"trainer.parallel.tensor or trainer.parallel.pipeline higher."
        )


def _check_experts(layout: Layout, shape: ModelShape) -> None:
    if shape.num_experts is None:
        if layout.expert > 1:
            raise InputError(
                f"trainer.parallel.expert is {layout.expert} but {shape.architecture} has no experts. "
                f"Set it to 1."
            )
        return
    _check_divides("trainer.parallel.expert", layout.expert, "experts", shape.num_experts)
    if layout.tensor > 1 and not layout.is_sequence_parallel:
        raise InputError(
            f"trainer.parallel.tensor is {layout.tensor} for a model with experts, which Megatron trains "
            f"with sequence parallelism only. Set trainer.parallel.sequence_parallel to true."
        )


def _check_overlap(layout: Layout) -> None:
    if not layout.overlaps_weights:
        return
    for key, is_on in (
        ("distributed_optimizer", layout.is_optimizer_distributed),
        ("overlap_grad_reduce", layout.overlaps_gradients),
    ):
        if not is_on:
            raise InputError(
                f"trainer.parallel.overlap_param_gather is true but trainer.parallel.{key} is not, without "
                f"which there is nothing to gather during a forward pass. Set both to true, or "
                f"overlap_param_gather to false."
            )


def _check_divides(key: str, size: int, what: str, count: int) -> None:
    if count % size:
        raise InputError(
            f"{key} is {size}, which does not divide the model's {count} {what}. "
            f"Set it to a divisor of {count}."
        )
