"""Publications: complete or not there, installed only when the loaded digests are the published ones."""

import asyncio
from pathlib import Path

import pytest
from fakes.engine import FakeEngine

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.serving.client import new_session
from asyncrl.serving.publication import Publication, compare_digests, install, read_publication


def publish(folder: Path, version: int = 3) -> Publication:
    publication = Publication(version, folder, {"a": "1" * 16, "b": "2" * 16})
    publication.write_manifest()
    return publication


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    publication = publish(tmp_path)
    assert read_publication(tmp_path) == publication


def test_a_folder_without_a_manifest_is_not_a_publication(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_publication(tmp_path)


def test_installing_pauses_in_place_updates_verifies_and_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeEngine() as engine, new_session() as session:
            await install(session, engine.url, publish(tmp_path))
            assert engine.version == "3"
            assert engine.calls == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]

    asyncio.run(scenario())


def test_a_server_that_loaded_something_else_stays_paused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeEngine() as engine, new_session() as session:
            engine.is_corrupt = True
            with pytest.raises(
                WeightMismatch, match=r"version 3: 2 of 2 tensors differ, first a \(server f+, trainer 1+"
            ):
                await install(session, engine.url, publish(tmp_path))
            assert "/continue_generation" not in engine.calls

    asyncio.run(scenario())


def test_a_server_that_is_gone_is_a_server_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeEngine() as engine:
            url = engine.url
        async with new_session() as session:
            with pytest.raises(ServerError, match="pause_generation failed"):
                await install(session, url, publish(tmp_path))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"ranks": [{"checksums": {"a": "1" * 16}}]}, "1 of 2 tensors differ, first b"),
        ({"ranks": [{"checksums": {"a": "1" * 16, "b": "2" * 16, "c": "3"}}]}, "first c"),
        ({"success": False}, "expected ranks"),
        ({"ranks": [{"checksums": {}}, {"checksums": {}}]}, "2 tensor-parallel ranks"),
    ],
)
def test_a_tensor_too_few_or_too_many_is_a_mismatch(tmp_path: Path, reply: object, said: str) -> None:
    with pytest.raises(ServerError, match=said):
        compare_digests("http://server", publish(tmp_path), reply)
