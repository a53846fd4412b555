"""A version's tensors in the CPU's memory, in the buckets that are sent and written.

Every rank plans the same buckets and holds its own.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.trainer.network.convert import exported_tensors
from asyncrl.trainer.network.export import file_names
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.network.model import device as find_device
from asyncrl.trainer.publishing.buckets import Bucket, plan_buckets

BUCKET_BYTES = {"cuda": 2**30, "cpu": 2**26}
"""Default of serving.weight_bucket_bytes, by device type."""


class HostWeights:
    """Kept for the whole run."""

    def __init__(
        self, *, bucket_bytes: int | None, allocate: Callable[[Bucket], Tensor] | None = None
    ) -> None:
        """`allocate`: the bytes of an own bucket, undefined. Default: pinned memory where there is a GPU."""
        self._bucket_bytes = bucket_bytes or BUCKET_BYTES[find_device().type]
        self.plan: list[Bucket] = []
        """The same on every rank; a bucket's number is its place."""
        self._allocate = allocate or _pinned
        self._copies: dict[int, Tensor] = {}
        """Number of an own bucket -> its bytes."""

    def make_plan(self, model: Policy | PolicyModel) -> None:
        """The first call decides. A call of every rank."""
        if not self.plan:
            self.plan = plan_buckets(exported_tensors(model), max_bytes=self._bucket_bytes)

    def own(self) -> dict[int, Bucket]:
        rank = dist.get_rank()
        return {number: bucket for number, bucket in enumerate(self.plan) if bucket.sender == rank}

    def copy(self, number: int) -> Tensor:
        """The bytes of an own bucket, undefined until they are written."""
        if number not in self._copies:
            self._copies[number] = self._allocate(self.plan[number])
        return self._copies[number]

    def files(self) -> dict[str, dict[str, Tensor]]:
        """File name -> tensors, of this rank."""
        names = file_names(len(self.plan))
        return {names[number]: self.plan[number].views(copy) for number, copy in self._copies.items()}

    def places(self) -> dict[str, str]:
        """Tensor -> its file, of all ranks."""
        names = file_names(len(self.plan))
        return {t.name: name for name, bucket in zip(names, self.plan, strict=True) for t in bucket.tensors}

    def num_bytes(self) -> int:
        """Total over all ranks."""
        return sum(bucket.num_bytes for bucket in self.plan)


def _pinned(bucket: Bucket) -> Tensor:
    return torch.empty(bucket.num_bytes, dtype=torch.uint8, pin_memory=find_device().type != "cpu")
