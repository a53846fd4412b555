"""This process among the trainer's: torch.distributed and Megatron's groups, from torchrun's variables.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT default to a single process. Gloo on CPU, NCCL with CUDA, but
gloo for control messages. No wait for another rank is longer than the timeout, because one that died with its
machine closes no connection. Only what the first rank does alone may take longer: all meet meanwhile.
"""

import functools
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import ProcessGroupGloo

from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.system.network import listen_at
from asyncrl.trainer.ranks.megatron import import_megatron, run_on_cpu

Result = TypeVar("Result")

LONGEST_WAIT = timedelta(minutes=30)
"""trainer.rank_timeout_seconds where nothing else is said."""
JOIN = timedelta(minutes=30)
"""Longest wait for all ranks to start, on whatever machines."""
BEATS = 4
"""Meetings of all ranks per timeout while the first works alone."""
LOST = (
    *("Timed out waiting", "Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("ncclRemoteError", "NCCL communicator was aborted", "collective operation timeout"),
)
"""Messages of gloo, then NCCL, for a rank that no longer answers; both raise plain RuntimeErrors."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """This process's links to the other ranks, apart from the groups that torch and Megatron keep."""

    timeout: timedelta
    control: dist.ProcessGroup
    """Gloo: a message needs no GPU, and waits of hours in it cannot run into NCCL's watchdog."""


# As torch keeps its default group: there is one trainer per process.
_joined: _Joined | None = None


def start(
    *, threads: int, seed: int, layout: Layout = ONE_PROCESS, timeout: timedelta = LONGEST_WAIT
) -> None:
    """Joins the process group, seeds this process and arranges all in `layout`; call `stop` at the end.

    `timeout` bounds each wait for other ranks.
    """
    global _joined
    run_on_cpu()
    # In place: torch asks of what it has made whether it is of this class.
    ProcessGroupGloo.__init__ = _init_on_shared_device  # type: ignore[method-assign, assignment]
    torch.set_num_threads(threads)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        import_megatron()
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # A single process needs no rendezvous, hence no port that another run could hold.
    store: dist.Store = dist.HashStore()
    if count > 1:
        store = meet(rank, count, timeout=JOIN)
    backend = "nccl" if has_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
    _joined = _Joined(timeout, dist.new_group(backend="gloo", timeout=timeout))
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
        # Megatron makes a timedelta of it, for which parts of a minute are fine.
        distributed_timeout_minutes=_us().timeout.total_seconds() / 60,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def stop() -> None:
    from megatron.core import parallel_state

    global _joined
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    _joined = None


def is_first() -> bool:
    """True on rank 0, which alone speaks to the queue, the servers and the disk."""
    return dist.get_rank() == 0


def side_group() -> dist.ProcessGroup:
    """One more gloo group of all ranks, for messages between threads. A call of every rank."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=_us().timeout)
    return group


def broadcast(value: Any) -> Any:
    """Rank 0's `value` on every rank. NumPy arrays in it go as tensors; all else is pickled."""
    if dist.get_world_size() == 1:
        return value
    arrays: list[pickle.PickleBuffer] = []
    box: list[Any] = [None, None]
    if is_first():
        box[0] = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        box[1] = [each.raw().nbytes for each in arrays]
    dist.broadcast_object_list(box, src=0, group=_us().control)
    pickled, sizes = box
    # Copied: torch warns of memory that must not be written.
    tensors = (
        [torch.frombuffer(bytearray(each.raw() or b"\0"), dtype=torch.uint8) for each in arrays]
        if is_first()
        else [torch.empty(max(1, size), dtype=torch.uint8) for size in sizes]
    )
    for tensor in tensors:
        dist.broadcast(tensor, src=0, group=_us().control)
    if is_first():
        return value
    return pickle.loads(
        pickled, buffers=[tensor.numpy()[:size] for tensor, size in zip(tensors, sizes, strict=True)]
    )


def gather(value: Result) -> list[Result]:
    """Each rank's `value`, on every rank."""
    if dist.get_world_size() == 1:
        return [value]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value, group=_us().control)
    return box


def gather_to_first(value: Result) -> list[Result]:
    """Each rank's `value` on rank 0; nothing on the others."""
    if dist.get_world_size() == 1:
        return [value]
    box: list[Any] | None = [None] * dist.get_world_size() if is_first() else None
    dist.gather_object(value, box, dst=0, group=_us().control)
    return box or []


def first_alone(work: Callable[[], Result]) -> Result:
    """Runs `work` on rank 0; returns its result on every rank. The others wait, hours for a batch if need be.

    A thread of rank 0 does it. Meanwhile all ranks meet several times per timeout, so that each notices when
    another one has died. What `work` raises ends rank 0, and with it all.
    """
    if dist.get_world_size() == 1:
        return work()
    if not is_first():
        while not _meet(is_done=False):
            continue
        result: Result = broadcast(None)
        return result
    box: list[Result] = []
    failures: list[BaseException] = []

    def try_it() -> None:
        try:
            box.append(work())
        # Raised below, in the rank's own thread.
        except BaseException as error:
            failures.append(error)

    # A daemon: where another rank is lost, this process does not wait for the answer.
    thread = threading.Thread(target=try_it, name="first alone", daemon=True)
    thread.start()
    thread.join(beat := _us().timeout.total_seconds() / BEATS)
    while thread.is_alive():
        _meet(is_done=False)
        thread.join(beat)
    if failures:
        raise failures[0]
    _meet(is_done=True)
    broadcast(box[0])
    return box[0]


def lost_rank(error: RuntimeError) -> str | None:
    """The sentence for an error that says that another rank does not answer; None of any other error."""
    if _joined is None or not any(words in str(error) for words in LOST):
        return None
    own, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    cause = str(error).strip().splitlines()[0]
    return (
        f"rank {own} of {count} lost another rank: it died, or did not answer within "
        f"{_joined.timeout.total_seconds():g} s (trainer.rank_timeout_seconds). {cause}"
    )


def _meet(*, is_done: bool) -> bool:
    """Whether any rank is done, on all. A sum and no broadcast: its sender would not miss a receiver."""
    done = torch.tensor(int(is_done))
    dist.all_reduce(done, group=_us().control)
    return bool(done)


def _us() -> _Joined:
    assert _joined is not None, "ranks.start comes first"
    return _joined


# torch's store asks for no token, and by default listens on every network of the machine. Here it listens on
# MASTER_ADDR alone, which is the loopback address while all ranks are on one machine. Under torchrun the
# agent may keep the store already, at an address of its own.
def meet(rank: int, count: int, *, timeout: timedelta, environment: Mapping[str, str] = os.environ) -> Store:
    """The store of `count` ranks, kept by rank 0 or by torchrun. Waits at most `timeout` for the others."""
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = TCPStore(address, port, count, is_master=False, timeout=timeout)
        # A restart finds the keys of the ranks before it there.
        return PrefixStore(f"attempt-{environment['TORCHELASTIC_RESTART_COUNT']}", store)
    own = listen_at(address, port) if rank == 0 else None
    return TCPStore(address, port, count, is_master=rank == 0, timeout=timeout, master_listen_fd=own)


# torch makes a gloo device per group, each with a thread that wakes a hundred times a second. Megatron makes
# dozens of groups, and again for each layout: a thousand of these threads keep half a core busy. All groups
# of this process share one device.
GROUP_THREADS = 2
"""Threads of a gloo group, as many as torch gives it: they run its operations, and sleep otherwise."""
_init = ProcessGroupGloo.__init__


def _init_on_shared_device(
    group: ProcessGroupGloo, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> None:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._threads = timeout, GROUP_THREADS
    options._devices = [_device()]
    _init(group, store, rank, size, options)


@functools.cache
def _device() -> object:
    return ProcessGroupGloo.create_default_device()
