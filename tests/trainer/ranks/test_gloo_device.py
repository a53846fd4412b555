"""All groups of a process share one device of gloo, and its thread."""

from pathlib import Path

import torch
import torch.distributed as dist


def num_loops() -> int:
    return [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")].count(
        "gloo_tcp_loop"
    )


def test_many_groups_have_the_thread_of_one() -> None:
    # conftest.py has joined the first of them.
    groups = [dist.new_group(backend="gloo") for _ in range(20)]
    total = torch.ones(3)
    for group in groups:
        dist.all_reduce(total, group=group)
        dist.monitored_barrier(group)
    assert total.tolist() == [1.0] * 3
    assert num_loops() == 1
    for group in groups:
        dist.destroy_process_group(group)
