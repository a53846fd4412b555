"""Publications: complete or not there, installed only when the loaded digests are the published ones."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from fakes.engine import FakeEngine

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.serving.publication import Publication, find_difference, install, read_publication
from asyncrl.serving.sglang.http import new_session


@pytest.fixture
def publication(tmp_path: Path) -> Publication:
    made = Publication(3, tmp_path, {"a": "1" * 16, "b": "2" * 16})
    made.write_manifest()
    return made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


def test_a_manifest_reads_back(publication: Publication) -> None:
    assert read_publication(publication.folder) == publication


def test_a_folder_without_a_manifest_is_not_a_publication(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_publication(tmp_path)


async def test_installing_pauses_in_place_updates_verifies_and_continues(
    one: FakeEngine, session: aiohttp.ClientSession, publication: Publication
) -> None:
    await install(session, one.url, publication)
    assert one.version == "3"
    assert one.calls == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]


async def test_the_digest_of_each_tensor_is_asked_for_only_where_the_digest_of_all_differs(
    one: FakeEngine, session: aiohttp.ClientSession, publication: Publication
) -> None:
    await install(session, one.url, publication)
    assert one.listed == 0
    one.is_corrupt = True
    with pytest.raises(WeightMismatch):
        await install(session, one.url, publication)
    assert one.listed == 1


async def test_a_server_that_is_gone_is_a_server_error(
    session: aiohttp.ClientSession, publication: Publication
) -> None:
    async with FakeEngine() as engine:
        url = engine.url
    with pytest.raises(ServerError, match="pause_generation failed"):
        await install(session, url, publication)


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ({"a": "1" * 16}, "1 of 2 tensors differ, first b"),
        ({"a": "1" * 16, "b": "2" * 16, "c": "3"}, "first c"),
    ],
)
def test_a_tensor_too_few_or_too_many_is_a_mismatch(
    publication: Publication, loaded: dict[str, str], said: str
) -> None:
    assert said in (find_difference("http://server", publication, [loaded]) or "")


def test_one_of_several_ranks_with_other_weights_is_a_mismatch(publication: Publication) -> None:
    good = dict(publication.digests)
    assert find_difference("http://server", publication, [good, good]) is None
    said = find_difference("http://server", publication, [good, good | {"b": "0"}])
    assert "on rank 1: 1 of 2 tensors differ, first b" in (said or "")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"is_corrupt": True}, r"version 3: 2 of 2 tensors differ, first a \(server f+, trainer 1+"),
        ({"checksum_reply": {"success": False}}, "expected ranks"),
        (
            {"checksum_reply": {"ranks": [{"checksums": {}, "per_gpu_checksum": "0"}] * 2}},
            "on rank 0: 2 of 2 tensors differ",
        ),
    ],
)
async def test_a_server_whose_digests_differ_or_cannot_be_compared_is_refused_and_stays_paused(
    one: FakeEngine,
    session: aiohttp.ClientSession,
    publication: Publication,
    fault: dict[str, object],
    said: str,
) -> None:
    vars(one).update(fault)
    with pytest.raises(ServerError, match=said):
        await install(session, one.url, publication)
    assert "/continue_generation" not in one.calls
