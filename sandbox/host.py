"""The host as a worker sees it: a socket for messages, and its life. Its death or its hang-up is the worker's
end, whatever the worker waits for."""

import os
import select
import socket
from collections.abc import Mapping, Sequence

from sandbox import frames
from sandbox.frames import readable


class HostGone(Exception):
    """The host has hung up or died: nothing waits for an answer."""


class Host:
    """The host's end of the line. Raises HostGone where the process `pid` is not the caller's parent."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line = line
        self._life = os.pidfd_open(pid)
        if os.getppid() != pid:
            raise HostGone

    def watch(self, poller: select.poll) -> tuple[int, int]:
        """Registers what tells of its end; the descriptors, either of which means that when it is ready."""
        poller.register(self._life, select.POLLIN)
        poller.register(self._line, select.POLLRDHUP)
        return self._life, self._line.fileno()

    def receive(self) -> frames.Message:
        """Its next message. Raises HostGone."""
        return frames.receive(self._read_exactly)

    def send(self, header: Mapping[str, object], blobs: Sequence[bytes] = ()) -> None:
        """Raises ConnectionError when it has hung up."""
        self._line.sendall(frames.pack(header, blobs))

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if self._life in readable(self._line.fileno(), self._life):
                raise HostGone
            chunk = self._line.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise HostGone
            data += chunk
        return bytes(data)
