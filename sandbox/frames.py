"""Messages over a stream socket: a JSON header and byte strings, length first. A wait for descriptors. The
host of a worker, whose death or hang-up is the worker's end, whatever the worker waits for."""

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sandbox.result import SandboxError


def readable(*descriptors: int, timeout_seconds: float | None = None) -> list[int]:
    """Descriptors that have input or hung up; empty after `timeout_seconds`. None waits without end."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(None if timeout_seconds is None else timeout_seconds * 1000)
    return [descriptor for descriptor, _ in ready]


_PREFIX = struct.Struct(">IQ")
"""Header bytes, body bytes."""

Message = tuple[dict[str, Any], list[bytes]]


def pack(header: Mapping[str, object], blobs: Sequence[bytes] = ()) -> bytes:
    """One message."""
    text = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([_PREFIX.pack(len(text), sum(map(len, blobs))), text, *blobs])


def _unpack(header: bytes, body: bytes) -> Message:
    fields: dict[str, Any] = json.loads(header)
    blobs, offset = [], 0
    for size in fields.pop("sizes"):
        blobs.append(body[offset : offset + size])
        offset += size
    return fields, blobs


def receive(read_exactly: Callable[[int], bytes]) -> Message:
    """The next message, by a function that reads this number of bytes."""
    header_size, body_size = _PREFIX.unpack(read_exactly(_PREFIX.size))
    return _unpack(read_exactly(header_size), read_exactly(body_size))


async def receive_async(read_exactly: Callable[[int], Awaitable[bytes]]) -> Message:
    """`receive`, awaited."""
    header_size, body_size = _PREFIX.unpack(await read_exactly(_PREFIX.size))
    return _unpack(await read_exactly(header_size), await read_exactly(body_size))


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """The next `size` bytes of a blocking socket. Raises ConnectionError when the other end has hung up."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the other end has hung up")
        data += part
    return bytes(data)


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

    def serve(
        self,
        start: Callable[[], Mapping[str, object]],
        answer: Callable[..., tuple[Mapping[str, object], list[bytes]]],
    ) -> None:
        """Answers its messages one after the other until it is gone, by `answer` of header and byte strings.

        The first message to it is what `start` gives, or why it failed."""
        with contextlib.suppress(HostGone, ConnectionError):
            try:
                self._send(start())
            except SandboxError as error:
                self._send({"error": str(error)})
                return
            while True:
                header, blobs = receive(self._read_exactly)
                try:
                    fields, parts = answer(header, blobs)
                except (SandboxError, OSError) as error:
                    fields, parts = {"error": str(error)}, []
                self._send(fields, parts)

    def _send(self, header: Mapping[str, object], blobs: Sequence[bytes] = ()) -> None:
        self._line.sendall(pack(header, blobs))

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
