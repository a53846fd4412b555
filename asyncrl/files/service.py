"""Routes that hand out the base model and the publications of a run, to who sees no disk of the controller.

GET /files/<folder>/listing.json lists a folder, GET /files/<folder>/<name> sends a file of it, whole or a
range, GET /files/recipe.yaml the run's resolved recipe. Owns no access check: the service that has the
routes asks for the token.
"""

import asyncio
import re
from pathlib import Path

import msgspec
from aiohttp import web

from asyncrl.files.listing import LISTING, FolderLister, is_safe

PREFIX = "/files"
MODEL = "model"
"""The base model's folder."""
RECIPE = "recipe.yaml"
"""By which a server is started as the run starts its own."""
_PUBLICATION = re.compile(r"(publications|evaluation)/v\d+")
_PATH = re.compile(rf"({MODEL}|{_PUBLICATION.pattern})/(?P<name>.+)")


class FileRoutes:
    """Of one run: its base model and what lies in its folder for servers to load."""

    def __init__(self, model: Path, run_folder: Path) -> None:
        self._model = model
        self._run_folder = run_folder
        self._lister = FolderLister()
        self._lock = asyncio.Lock()
        """Ten servers that ask for a new listing at once wait for one to be made."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(f"{PREFIX}/{{path:.+}}", self._on_get)

    async def _on_get(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["path"] == RECIPE:
            return web.FileResponse(self._run_folder / RECIPE)
        match = _PATH.fullmatch(request.match_info["path"])
        if match is None or not is_safe(match["name"]):
            return web.Response(status=404, text="there is no such folder")
        folder = self._model if match[1] == MODEL else self._run_folder / match[1]
        if match["name"] == LISTING:
            return await self._listing(folder)
        file = folder / match["name"]
        if not file.is_file():
            return web.Response(status=404, text=f"{match[1]} has no file {match['name']}")
        return web.FileResponse(file)

    async def _listing(self, folder: Path) -> web.Response:
        try:
            async with self._lock:
                listing = await asyncio.to_thread(self._lister.list, folder)
        except FileNotFoundError:
            listing = None
        if listing is None or not listing.files:
            return web.Response(status=404, text=f"there is no folder {folder.name}, or no longer")
        return web.Response(body=msgspec.json.encode(listing), content_type="application/json")


def folder_url(service_url: str, folder: Path, run_folder: Path) -> str:
    """Where a publication of the run is fetched from."""
    name = folder.relative_to(run_folder).as_posix()
    assert _PUBLICATION.fullmatch(name), f"{folder} is not handed out"
    return f"{service_url}{PREFIX}/{name}"


def model_url(service_url: str) -> str:
    """Where the base model is fetched from."""
    return f"{service_url}{PREFIX}/{MODEL}"
