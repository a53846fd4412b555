"""This process among the trainer's: torch.distributed and Megatron's groups, from torchrun's variables.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT default to a single process. Gloo on CPU, NCCL with CUDA.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.trainer import cpu

# Other ranks wait in a broadcast while rank 0 waits for a batch, as long as rollout needs. A rank that dies
# closes its connections, which ends the wait at once; the controller watches the rest.
LONGEST_WAIT = timedelta(days=7)


def start(*, threads: int, seed: int, layout: Layout = ONE_PROCESS) -> None:
    """Joins the process group, seeds this process and arranges all in `layout`; call `stop` at the end."""
    cpu.install()
    torch.set_num_threads(threads)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # A single process needs no rendezvous, hence no port that another run could hold.
    store = dist.HashStore() if os.environ["WORLD_SIZE"] == "1" else None
    dist.init_process_group(
        "nccl" if has_cuda else "gloo",
        store=store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=LONGEST_WAIT,
    )
    arrange(layout, seed=seed)


def arrange(layout: Layout, *, seed: int) -> None:
    """Makes Megatron's groups for `layout`; what does not fill it is data-parallel."""
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_stages if layout.virtual_stages > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        # Experts are dealt whole: half of a small matrix each would cost more in messages than it saves.
        expert_tensor_parallel_size=1,
        distributed_timeout_minutes=int(LONGEST_WAIT.total_seconds() // 60),
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def stop() -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def is_first() -> bool:
    """True on rank 0, which alone speaks to the queue, the servers and the disk."""
    return dist.get_rank() == 0


def broadcast(value: Any) -> Any:
    """Rank 0's `value` on every rank."""
    box = [value]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]
