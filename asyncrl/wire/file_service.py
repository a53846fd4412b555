"""Routes that hand out what a run keeps in folders, to processes that do not see its disk, and listings of
these.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from aiohttp import web

from asyncrl.system.files import sha256_of
from asyncrl.system.places import CHECKPOINTS, EVALUATION, PUBLICATIONS, RECIPE
from asyncrl.wire.access import is_shown

LISTING = "listing.json"
"""The name under which the listing of a folder is asked for; no file of the folder has it."""

INDEX = ".metadata"
"""Index of a checkpoint, as torch.distributed.checkpoint names it."""


class ListedFile(msgspec.Struct, frozen=True):
    name: str
    """Relative to the folder, with slashes."""
    size: int
    """In bytes."""
    sha256: str


class Listing(msgspec.Struct, frozen=True):
    files: list[ListedFile]


class FolderLister:
    """Lists folders. Remembers digests of files that have not changed since: hashing reads every byte."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}
        """By path, size and time of the last change in nanoseconds."""

    def list(self, folder: Path) -> Listing:
        """The files of `folder` that `file_names` names. Raises OSError. Blocks while it hashes."""
        return Listing([self._listed(folder, name) for name in file_names(folder)])

    def _listed(self, folder: Path, name: str) -> ListedFile:
        path = folder / name
        state = path.stat()
        key = (str(path), state.st_size, state.st_mtime_ns)
        if key not in self._known:
            self._known[key] = sha256_of(path)
        return ListedFile(name, state.st_size, self._known[key])


def file_names(folder: Path) -> list[str]:
    """Names of the files below `folder`, links to files included: a model of the hub is a folder of links.
    Hidden files and folders are left out, what is being written among them, but for INDEX."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        str(PurePosixPath(name))
        for name in names
        if not any(part.startswith(".") and part != INDEX for part in name.parts)
    ]


def is_safe(name: str) -> bool:
    """Whether a name from the wire stays below the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


PREFIX = "/files"
MODEL = "model"
"""The base model's folder."""
TERMS = "terms"
"""Files that the recipe's section `algorithm` names, by their numbers."""
_OF_RUN = re.compile(rf"({PUBLICATIONS}|{EVALUATION})/v\d+(\.(changed|delta))?|{CHECKPOINTS}(/step-\d+)?")
"""Folders in a run folder."""
_PATH = re.compile(rf"(?P<folder>{MODEL}|{_OF_RUN.pattern})/(?P<name>.+)")
_TERM = re.compile(rf"{TERMS}/(\d+)")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FileRoutes:
    """Routes of one run: its base model and what lies in its folder for others to load."""

    def __init__(self, model: Path | None, run_folder: Path, terms: Sequence[str] = ()) -> None:
        """`terms` are files of the recipe's section `algorithm`. Without `model` there is none."""
        self._model = model
        self._run_folder = run_folder
        self._terms = terms
        self._lister = FolderLister()
        self._lock = asyncio.Lock()
        """Ten servers that ask for a new listing at once wait for one to be made."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(f"{PREFIX}/{{path:.+}}", self._on_get)

    async def _on_get(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if path == RECIPE:
            return _send(self._run_folder / RECIPE)
        if (term := _TERM.fullmatch(path)) is not None and int(term[1]) < len(self._terms):
            return _send(Path(self._terms[int(term[1])]))
        match = _PATH.fullmatch(path)
        folder = None if match is None else self._folder(match["folder"])
        if match is None or folder is None or not is_safe(match["name"]):
            return web.Response(status=404, text="there is no such folder")
        if match["name"] == LISTING:
            return await self._listing(folder)
        return _send(folder / match["name"])

    def _folder(self, name: str) -> Path | None:
        return self._model if name == MODEL else self._run_folder / name

    async def _listing(self, folder: Path) -> web.Response:
        try:
            async with self._lock:
                listing = await asyncio.to_thread(self._lister.list, folder)
        except FileNotFoundError:
            listing = Listing([])
        # A run that has just begun has no checkpoints yet.
        if not listing.files and folder.name != CHECKPOINTS:
            return web.Response(status=404, text=f"there is no folder {folder.name}, or no longer")
        return web.Response(body=msgspec.json.encode(listing), content_type="application/json")


class FileServer:
    """Hands out publications and checkpoints of a run folder that the controller does not see."""

    def __init__(self, run_folder: Path, *, keys: Sequence[str], host: str) -> None:
        """A request with none of `keys` gets 401."""
        self._run_folder = run_folder
        self._keys = [key for key in keys if key]
        self._host = host
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Its URL, on a free port."""
        app = web.Application(middlewares=[self._check_key])
        FileRoutes(None, self._run_folder).add_to(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0).start()
        return f"http://{self._host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization")
        if not any(is_shown(key, shown) for key in self._keys):
            return web.Response(status=401, text="this needs the run's token (access.token in its folder)")
        return await handler(request)


def _send(file: Path) -> web.StreamResponse:
    if not file.is_file():
        return web.Response(status=404, text=f"there is no file {file.name}")
    return web.FileResponse(file)


def folder_url(service_url: str, folder: Path, run_folder: Path) -> str:
    """Where a publication or a checkpoint of the run is fetched from."""
    name = folder.relative_to(run_folder).as_posix()
    assert _OF_RUN.fullmatch(name), f"{folder} is not handed out"
    return f"{service_url}{PREFIX}/{name}"


def url_of(service_url: str, name: str) -> str:
    """Where a part of a run is fetched from: the folder CHECKPOINTS or MODEL, the file RECIPE, or
    TERMS/<number> for the file of a loss term."""
    return f"{service_url}{PREFIX}/{name}"


def is_url(place: str) -> bool:
    """Whether the trainer names a folder by where it is fetched from: it has another disk."""
    return place.startswith("http://")
