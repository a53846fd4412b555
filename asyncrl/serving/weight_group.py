"""Code common to the trainer and the servers for a torch.distributed group that weights are sent in."""

import contextlib
import os
from collections.abc import Iterator

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"


@contextlib.contextmanager
def errors_raised_where_they_are_waited_for() -> Iterator[None]:
    """Holds for NCCL groups made meanwhile. Else torch's watchdog ends this process when another of the group
    dies, as it should for the trainer's own groups. torch reads the variable as a group is made."""
    before = os.environ.get(BLOCKING_WAIT)
    os.environ[BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        del os.environ[BLOCKING_WAIT]
        if before is not None:
            os.environ[BLOCKING_WAIT] = before


def end(group: dist.ProcessGroup) -> None:
    """Leaves at once. On NCCL an orderly end waits until every rank of the machine has called it; a server is
    told later, or has died. All that was sent has been waited for."""
    if dist.get_backend(group) == "nccl":
        c10d._abort_process_group(group)
    else:
        # A process that still waits in it learns that the connection is closed.
        dist.destroy_process_group(group)
