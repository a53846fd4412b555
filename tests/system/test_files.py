"""Files are written whole and read as text; what the disk refuses becomes a sentence."""

import asyncio
import contextlib
import errno
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.small_disk import refused_writes
from fakes.trainer import FakeTrainer
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException

from asyncrl.errors import DiskError, InputError
from asyncrl.run.checkpoints import checkpoint_path, find_newest, write_manifest
from asyncrl.serving.publication import Publication
from asyncrl.system.files import (
    decoded,
    find_refusal,
    fresh_part,
    read_text,
    remove,
    replace,
    sha256_of,
    write_whole,
    writing,
)
from asyncrl.wire.file_service import FileRoutes, folder_url
from asyncrl.wire.messages import CommitRequest, TakeRequest


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        DiskError, match=r"Publication v3 under .*No space left .* Free up disk space .* resumes"
    ):
        with writing("Publication v3", tmp_path / "publications"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_that_does_not_name_the_disk_is_traced_to_it_by_asking_the_disk(tmp_path: Path) -> None:
    # torch.save's words on a full disk.
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
    with pytest.raises(DiskError, match="File too large") as caught, refused_writes():
        with writing("The checkpoint of version 4", tmp_path / "not" / "there"):
            raise error
    assert caught.value.__cause__ is error


def test_an_error_on_a_disk_that_takes_writes_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing("A file", tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_behind_the_errors_that_were_raised_for_it(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    outer = RuntimeError("the checkpoint failed")
    outer.__cause__ = full
    assert find_refusal(outer, tmp_path) == os.strerror(errno.ENOSPC)
    # torch.distributed.checkpoint: what the ranks raised.
    of_ranks = CheckpointException("failed", {1: (full, None)})
    assert find_refusal(of_ranks, tmp_path) == os.strerror(errno.ENOSPC)
    assert find_refusal(RuntimeError("something else"), tmp_path) is None


def test_a_full_disk_is_found_in_the_words_of_a_library_in_rust(tmp_path: Path) -> None:
    # What safetensors raises, which is no OSError; by then its half file may be gone, and the disk has room.
    error = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert find_refusal(error, tmp_path) == os.strerror(errno.ENOSPC)


def test_a_full_disk_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "report.json", "old")
    with refused_writes(), pytest.raises(OSError):
        write_whole(tmp_path / "report.json", "new")
    assert (tmp_path / "report.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    write_whole(tmp_path / "report.json", "ä")
    assert (tmp_path / "report.json").read_text(encoding="utf-8") == "ä"


class OtherDisk(FakeTrainer):
    """A trainer whose folder the controller does not see."""

    def __init__(self, url: str, folder: Path, files_url: str) -> None:
        super().__init__(url, folder / "publications")
        self.run_folder, self.files_url = folder, files_url

    async def _take(self, session, request):  # type: ignore[no-untyped-def]
        place = folder_url(self.files_url, Path(request.publication_folder), self.run_folder)
        told = TakeRequest(request.version, request.published, place, request.step_metrics)
        return await super()._take(session, told)

    async def _commit(self, session: aiohttp.ClientSession) -> None:
        folder = checkpoint_path(self.run_folder / "checkpoints", self.version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank-0").write_text(f"weights {self.version}")
        write_manifest(folder, self.version, {"rank-0": sha256_of(folder / "rank-0")})
        await self._send_commit(
            session, CommitRequest(self.version, folder_url(self.files_url, folder, self.run_folder))
        )


@contextlib.asynccontextmanager
async def serving_files(run_folder: Path) -> AsyncIterator[str]:
    """As a `FileServer`, to whoever asks: the fakes show no token."""
    app = web.Application()
    FileRoutes(None, run_folder).add_to(app)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    async with FakeEngine() as first, FakeEngine() as second:
        yield [first, second]


async def test_a_run_trains_with_a_trainer_on_another_disk(engines: list[FakeEngine], tmp_path: Path) -> None:
    """Servers join and evaluations run on copies of publications, and a commit leaves a checkpoint here."""
    rollout, evaluation = engines
    there = tmp_path / "there"
    async with asyncio.timeout(300), controller_on(tmp_path, make_recipe(), [rollout], [evaluation]) as parts:
        controller, notebook = parts
        async with serving_files(there) as url:
            trainer = OtherDisk(controller.queue_url, there, url)
            await controller.run(trainer.run)
        assert [batch.taken_version for batch in trainer.batches] == [0, 1, 2, 3]
        assert {row["when"] for row in notebook.evaluations} == {"before", "during", "after"}
        rows = controller.queue.journal.read("SELECT checkpoint_folder FROM commits WHERE version = 4")
    here = tmp_path / "run" / "checkpoints"
    assert rows == [(str(checkpoint_path(here, 4)),)] and find_newest(here).version == 4


async def test_a_checkpoint_that_cannot_be_copied_is_not_committed(
    engines: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer is told and ends; the run does not: it may be the trainer's node that is gone."""
    monkeypatch.setattr("asyncrl.wire.fetch.PAUSE_SECONDS", 0.0)
    async with controller_on(tmp_path, make_recipe(), engines[:1]) as (controller, _):
        trainer = OtherDisk(controller.queue_url, tmp_path / "there", "http://127.0.0.1:9")
        async with aiohttp.ClientSession() as session:
            with pytest.raises(AssertionError, match="The checkpoint of version 0 was not copied"):
                await trainer._commit(session)
        assert controller.queue.committed_version == 0 and not controller.context.state.is_over
        await controller.queue.journal.barrier()
        assert controller.queue.journal.read("SELECT * FROM commits") == []


def test_a_publication_elsewhere_is_not_written_until_it_is_here(tmp_path: Path) -> None:
    assert not Publication(3, tmp_path, {}, lambda: None).is_written()


@given(before=st.text(), after=st.binary())
def test_the_place_of_the_first_byte_that_is_no_text_is_named(before: str, after: bytes) -> None:
    text = f"x{before}".encode()
    line, column = text.count(b"\n") + 1, len(text) - text.rfind(b"\n")
    with pytest.raises(InputError, match=rf"^f:{line}: not UTF-8 text: byte 0xff in column {column}\."):
        decoded(text + b"\xff" + after, "f")


@given(text=st.text().filter(lambda text: "\0" not in text[:3]))
def test_text_is_read_as_python_reads_it(text: str) -> None:
    assert decoded(text.encode(), "f") == text.removeprefix("\ufeff").replace("\r\n", "\n").replace(
        "\r", "\n"
    )


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(tmp_path / "f") == "a\nb"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"a", mtime=0), "is compressed by gzip, not UTF-8 text"),
        (
            "a,b".encode("utf-16"),
            "is text in UTF-16, not UTF-8 text. Convert it with: iconv -f UTF-16 -t UTF-8 f >",
        ),
        ("a,b".encode("utf-16-le"), "is text in UTF-16"),
        ("a,b".encode("utf-16-be"), "is text in UTF-16"),
        ("a,b".encode("utf-32"), "is text in UTF-32"),
        (b"PK\x03\x04\x14\x00\xff", "is a zip archive or a spreadsheet"),
        (b"\x28\xb5\x2f\xfd", "is compressed by zstd"),
    ],
)
def test_a_file_of_a_known_kind_is_called_by_it(content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        decoded(content, "f")


def test_what_a_killed_writer_left_is_removed_before_writing(tmp_path: Path) -> None:
    (fresh_part(tmp_path / "v1") / "half").write_text("x")
    part = fresh_part(tmp_path / "v1")
    assert list(part.iterdir()) == []
    replace(part, tmp_path / "v1")
    remove(tmp_path / "v1")
    remove(tmp_path / "v1")
    assert list(tmp_path.iterdir()) == []
