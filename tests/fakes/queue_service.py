"""A replay queue that hands out prepared batches over real HTTP and remembers what it was told."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from asyncrl.records import Batch, PolicyVersion
from asyncrl.wire.messages import (
    COMMIT_PATH,
    DRAIN_PATH,
    TAKE_PATH,
    CommitRequest,
    DrainRequest,
    TakeReply,
    TakeRequest,
    encode_take,
)


class FakeQueueService:
    """Serves `batches[version]` for take(version), and the end of the run where there is none."""

    def __init__(self, batches: list[Batch], servers: list[str] | None = None) -> None:
        self.batches = {batch.taken_version: batch for batch in batches}
        self.servers = servers or []
        self.takes: list[TakeRequest] = []
        self.commits: list[CommitRequest] = []
        self.drains: list[DrainRequest] = []
        self.heldout: dict[PolicyVersion, float] = {}
        """Told with every take, whatever the version."""
        self._held: PolicyVersion | None = None
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeQueueService":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def hold(self, version: PolicyVersion) -> None:
        """The take of `version` is heard but not answered before `release`."""
        self._held = version

    def release(self) -> None:
        with self._changed:
            self._held = None
            self._changed.notify_all()

    def wait_for_take(self, version: PolicyVersion, *, timeout_seconds: float = 60) -> None:
        with self._changed:
            asked = self._changed.wait_for(lambda: self._last_version() == version, timeout_seconds)
        assert asked, f"no take of version {version} within {timeout_seconds} s"

    def wait_for_commit(self, version: PolicyVersion, *, timeout_seconds: float = 60) -> None:
        with self._changed:
            heard = self._changed.wait_for(
                lambda: any(commit.version == version for commit in self.commits), timeout_seconds
            )
        assert heard, f"no commit of version {version} within {timeout_seconds} s"

    def answer(self, path: str, body: bytes) -> TakeReply | None:
        if path == TAKE_PATH:
            request = msgspec.msgpack.decode(body, type=TakeRequest)
            with self._changed:
                self.takes.append(request)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._held != request.version)
            return TakeReply(self.batches.get(request.version), self.servers, self.heldout)
        if path == DRAIN_PATH:
            self.drains.append(msgspec.msgpack.decode(body, type=DrainRequest))
            return None
        assert path == COMMIT_PATH
        with self._changed:
            self.commits.append(msgspec.msgpack.decode(body, type=CommitRequest))
            self._changed.notify_all()
        return None

    def _last_version(self) -> PolicyVersion | None:
        return self.takes[-1].version if self.takes else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = service.answer(self.path, body)
                reply = b"" if answer is None else encode_take(answer)
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a trainer that was killed in its take
                    self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
