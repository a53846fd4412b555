"""The store by which the ranks of a server meet (torch's TCPStore) listens on their address alone.

torch has it listen on every network of the machine, also for a server with one rank that meets nobody, and
it asks nobody for a key. SGLang puts it on the loopback address, or on that of --dist-init-addr.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.ports import listen_at


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register("torch.distributed.rendezvous._create_c10d_store", _create, HookType.AROUND)


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
