"""A Ray cluster on this machine whose nodes say that they have GPUs. Without Ray, skip who imports this."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster


@contextlib.contextmanager
def ray_nodes(*num_gpus: int, caches: Path) -> Iterator[Cluster]:
    """A head without GPUs and a node for each of `num_gpus`; their folders of caches lie in `caches`."""
    size: dict[str, Any] = {"object_store_memory": 80 * 2**20, "num_cpus": 4, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        cluster = Cluster()
        try:
            for index, number in enumerate((0, *num_gpus)):
                # Where a node keeps what it fetched.
                own = {"XDG_CACHE_HOME": str(caches / f"node-{index}")}
                cluster.add_node(num_gpus=number, env_vars=own, **size)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()
