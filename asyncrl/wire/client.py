"""The trainer's end of wire 2: blocking calls that outlive a restart of the controller's socket.

A take waits as long as the queue needs: the watchdog of that wait is the controller, which answers an
empty reply at least every POLL_SECONDS, so that a dead controller is told from a slow rollout.
"""

import http.client
import urllib.parse

import msgspec

from asyncrl.errors import QueueError
from asyncrl.wire.access import bearer
from asyncrl.wire.messages import (
    COMMIT_PATH,
    DRAIN_PATH,
    TAKE_PATH,
    CommitReply,
    CommitRequest,
    DrainRequest,
    TakeReply,
    TakeRequest,
    decode_take,
)

POLL_SECONDS = 20.0
"""The service answers "not yet" (204) after this long; the client asks again."""


class QueueClient:
    """Speaks to the queue service at `url`, which asks for the run's `token`. Not thread-safe."""

    def __init__(self, url: str, *, token: str = "") -> None:
        self._headers = {"Content-Type": "application/msgpack", **bearer(token)}
        address = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(
            address.hostname or "127.0.0.1", address.port, timeout=3 * POLL_SECONDS
        )

    def take(self, request: TakeRequest) -> TakeReply:
        """The batch for `request.version`, however long it takes to be ready. Raises QueueError, OSError."""
        return decode_take(self.take_encoded(request))

    def take_encoded(self, request: TakeRequest) -> bytes:
        """As `take`, for `decode_take` of other processes too."""
        message = msgspec.msgpack.encode(request)
        while (body := self._post(TAKE_PATH, message)) is None:
            continue
        return body

    def drain(self, request: DrainRequest) -> None:
        """Returns when nothing is generated any more, however long that takes. Raises QueueError, OSError."""
        body = msgspec.msgpack.encode(request)
        while self._post(DRAIN_PATH, body) is None:
            continue

    def commit(self, request: CommitRequest) -> CommitReply:
        """Tells the queue that a checkpoint is durable, however long a copy of it takes. Raises QueueError,
        OSError."""
        message = msgspec.msgpack.encode(request)
        while (body := self._post(COMMIT_PATH, message)) is None:
            continue
        return msgspec.msgpack.decode(body, type=CommitReply)

    def close(self) -> None:
        self._connection.close()

    def _post(self, path: str, body: bytes) -> bytes | None:
        self._connection.request("POST", path, body, self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status == 204:
            return None
        if response.status != 200:
            raise QueueError(f"{path} answered {response.status}: {answer.decode(errors='replace')}")
        return answer
