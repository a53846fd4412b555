"""Checkpoints and publications of a trainer on another disk, as they come into the run folder."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncrl.run.checkpoints import checkpoint_path, find_newest, saved_versions, write_manifest
from asyncrl.system.files import sha256_of
from asyncrl.wire import fetch
from asyncrl.wire.fetch import FetchFailed, TrainerCopies, fetch_copy
from asyncrl.wire.file_service import FileServer, folder_url

TOKEN = "the-token-of-the-run"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The run folder on the trainer's node."""
    (tmp_path / "there" / "checkpoints").mkdir(parents=True)
    (tmp_path / "there" / "publications").mkdir()
    return tmp_path / "there"


@pytest.fixture
async def url(there: Path) -> AsyncIterator[str]:
    server = FileServer(there, keys=[TOKEN, ""], host="127.0.0.1")
    yield await server.start()
    await server.close()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


def make_copies(here: Path, *, token: str = TOKEN, best_of_every: int = 0) -> TrainerCopies:
    return TrainerCopies(
        here, token=token, num_kept=2, best_of_every=best_of_every, heldout=lambda: {4: 0.9, 8: 0.5, 12: 0.6}
    )


def write_checkpoint(run: Path, version: int, *, weights: str = "weights") -> Path:
    folder = checkpoint_path(run / "checkpoints", version)
    folder.mkdir()
    (folder / "rank-0").write_text(f"{weights} {version}")
    # As torch.distributed.checkpoint names the index.
    (folder / ".metadata").write_text("index")
    write_manifest(folder, version, {name: sha256_of(folder / name) for name in ("rank-0", ".metadata")})
    return folder


async def bring(copied: TrainerCopies, url: str, there: Path, version: int) -> Path:
    return await copied.checkpoint(
        folder_url(url, checkpoint_path(there / "checkpoints", version), there), version
    )


async def test_a_copied_checkpoint_is_complete_and_the_newest_stay(url: str, there: Path, here: Path) -> None:
    copied = make_copies(here)
    for version in (4, 8, 12):
        write_checkpoint(there, version)
        folder = await bring(copied, url, there, version)
        assert (folder / "rank-0").read_text() == f"weights {version}"
    assert saved_versions(here / "checkpoints") == [8, 12]
    assert find_newest(here / "checkpoints").version == 12


async def test_the_best_checkpoint_stays_too(url: str, there: Path, here: Path) -> None:
    copied = make_copies(here, best_of_every=4)
    for version in (4, 8, 12, 16):
        write_checkpoint(there, version)
        await bring(copied, url, there, version)
    # That of 16 is not evaluated yet.
    assert saved_versions(here / "checkpoints") == [4, 12, 16]
    assert json.loads((here / "checkpoints" / "heldout.json").read_text())["4"] == 0.9


async def test_an_export_is_added_and_nothing_is_fetched_twice(
    url: str, there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, original = make_copies(here), write_checkpoint(there, 4)
    await bring(copied, url, there, 4)
    (original / "hf").mkdir()
    (original / "hf" / "config.json").write_text("{}")
    asked: list[str] = []
    monkeypatch.setattr(fetch, "_append", _counting(asked))
    folder = await bring(copied, url, there, 4)
    assert [name.rpartition("/")[2] for name in asked] == ["config.json"]
    assert (folder / "hf" / "config.json").read_text() == "{}" and (folder / "rank-0").exists()


async def test_a_damaged_copy_never_gets_the_name_of_a_checkpoint(url: str, there: Path, here: Path) -> None:
    with pytest.raises(FetchFailed, match="answered 404"):
        await bring(make_copies(here), url, there, 4)
    write_checkpoint(there, 4)
    with pytest.raises(FetchFailed, match="answered 401: this needs the run's token"):
        await bring(make_copies(here, token="wrong"), url, there, 4)
    assert saved_versions(here / "checkpoints") == []


async def test_who_asks_again_waits_for_the_same_copy(
    url: str, there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, asked = make_copies(here), list[str]()
    monkeypatch.setattr(fetch, "fetch_copy", _counting(asked, fetch.fetch_copy))
    write_checkpoint(there, 4)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await bring(copied, url, there, 4)
    assert await bring(copied, url, there, 4) == checkpoint_path(here / "checkpoints", 4)
    assert len(asked) == 1


async def test_a_copy_from_a_lost_node_does_not_stand_for_the_one_of_another(
    url: str, there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, is_gone = make_copies(here), threading.Event()

    def hanging(url: str, target: Path, *, token: str) -> Path:
        if "lost" not in url:
            return fetch_copy(url, target, token=token)
        is_gone.wait(30)
        raise FetchFailed("no answer")

    monkeypatch.setattr(fetch, "fetch_copy", hanging)
    lost = asyncio.create_task(copied.checkpoint("http://lost/files/checkpoints/step-4", 4))
    await asyncio.sleep(0)
    write_checkpoint(there, 4)
    other = asyncio.create_task(bring(copied, url, there, 4))
    await asyncio.sleep(0)
    is_gone.set()
    assert (await other / "rank-0").read_text() == "weights 4"
    with pytest.raises(FetchFailed, match="no answer"):
        await lost


async def test_a_publication_comes_when_somebody_needs_it(url: str, there: Path, here: Path) -> None:
    copied = make_copies(here)
    for version in (1, 2, 3):
        original = there / "publications" / f"v{version}"
        target = copied.publication(version)
        place = folder_url(url, original, there)
        # The trainer is still writing it.
        copied.begin_publication(place, target)
        await _settled(copied)
        assert not target.exists()
        original.mkdir()
        (original / "publication.json").write_text(str(version))
        copied.begin_publication(place, target)
        await _settled(copied)
        assert (target / "publication.json").read_text() == str(version)
    assert sorted(path.name for path in (here / "publications").iterdir()) == ["v2", "v3"]
    # A trainer that went back writes a version again: what is here is another one.
    assert not copied.publication(3).exists()


async def _settled(copied: TrainerCopies) -> None:
    await asyncio.gather(*copied._running.values(), return_exceptions=True)
    await asyncio.sleep(0)


def _counting(asked: list[str], original=fetch._append):  # type: ignore[no-untyped-def]
    def counted(url, *arguments, **options):  # type: ignore[no-untyped-def]
        asked.append(url)
        return original(url, *arguments, **options)

    return counted
