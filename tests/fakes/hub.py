"""A model hub on this machine: what huggingface_hub asks for, of folders on disk."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Hub:
    """`models`: hub id -> folder, the same at each commit; `gated` ids answer 403; `cut` files break off."""

    models: dict[str, Path]
    commit: str = "c0ffee" + "0" * 34
    """Of the main branch."""
    commits: set[str] = field(default_factory=set)
    """Others that it has."""
    gated: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """ "METHOD path" and, where one was asked for, the range of bytes."""
    url: str = ""


@contextmanager
def running_hub(**models: Path) -> Iterator[Hub]:
    """Keys are hub ids with "__" for "/"."""
    hub = Hub({name.replace("__", "/"): folder for name, folder in models.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]

    def log_message(self, *words: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        wanted = self.headers.get("Range", "")
        self.hub.requests.append(f"{self.command} {path} {wanted}".strip())
        hub_id = next((name for name in self.hub.models if f"/{name}/" in f"{path}/"), None)
        if hub_id is None:
            return self._refuse(404, "RepoNotFound")
        if hub_id in self.hub.gated and "/resolve/" in path:
            return self._refuse(403, "GatedRepo")
        kind = "datasets" if path.startswith(("/api/datasets/", "/datasets/")) else "models"
        folder = self.hub.models[hub_id]
        if path.startswith(f"/api/{kind}/{hub_id}/tree/"):
            return self._send_json([_entry(file, folder) for file in _files(folder)])
        if path.startswith(f"/api/{kind}/{hub_id}"):
            revision = path.rpartition("/")[2]
            is_known = revision in self.hub.commits
            if "/revision/" in path and not is_known and revision not in ("main", "v1", self.hub.commit):
                return self._refuse(404, "RevisionNotFound")
            files = [{"rfilename": file.relative_to(folder).as_posix()} for file in _files(folder)]
            commit = revision if is_known else self.hub.commit
            return self._send_json({"id": hub_id, "sha": commit, "siblings": files})
        return self._send_file(folder / path.partition("/resolve/")[2].partition("/")[2], folder, wanted)

    def _send_json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send_file(self, file: Path, folder: Path, wanted: str) -> None:
        if not file.is_file():
            return self._refuse(404, "EntryNotFound")
        content = file.read_bytes()
        asked = self.path.partition("/resolve/")[2].partition("/")[0]
        commit = asked if COMMIT.fullmatch(asked) else self.hub.commit
        headers = {"ETag": f'"{_entry(file, folder)["oid"]}"', "X-Repo-Commit": commit}
        begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(
            206 if begin else 200, content[begin:], headers, is_cut=file.name in self.hub.cut and not begin
        )

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, is_cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})


def _files(folder: Path) -> list[Path]:
    """Also those of folders inside of it."""
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _entry(file: Path, folder: Path) -> dict[str, object]:
    name, size = file.relative_to(folder).as_posix(), file.stat().st_size
    digest = hashlib.sha1(name.encode() + str(size).encode()).hexdigest()
    return {"type": "file", "path": name, "size": size, "oid": digest}
