"""The store by which the ranks of a server meet (torch's TCPStore) is reached from its own machine alone.

SGLang has one for a server with one rank, too, at the server's address; torch has it listen on every network
of the machine, and it asks for no key. Only the store of a server on several machines, at
--dist-init-addr, listens there.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.system.network import listen_at

LOOPBACK = "127.0.0.1"


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.distributed.bootstrap._resolve_dist_init_method", _stay_here, HookType.AROUND
    )
    HookRegistry.register("torch.distributed.rendezvous._create_c10d_store", _create, HookType.AROUND)


def _stay_here(original, *, dist_port):
    from sglang.srt.runtime_context import get_parallel

    method = original(dist_port=dist_port)
    is_own = method.startswith("tcp://") and not get_parallel().dist_init_addr
    return f"tcp://{LOOPBACK}:{dist_port}" if is_own else method


def _create(original, hostname, port, rank, world_size, timeout, use_libuv=True):
    from torch.distributed import TCPStore

    own = listen_at(hostname, port) if rank == 0 else None
    if own is None:
        return original(hostname, port, rank, world_size, timeout, use_libuv)
    return TCPStore(
        hostname,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=own,
        use_libuv=use_libuv,
    )
