"""Free TCP ports of this machine, for processes that a run starts."""

import socket


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens now. Another process may take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
