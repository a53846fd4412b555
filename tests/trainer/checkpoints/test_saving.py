"""Two real ranks that write one checkpoint, of which one may fail (models: test_checkpoint.py)."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from fakes.launch_trainer import finish_trainer
from fakes.template import Template

from asyncrl.system.files import sha256_of
from asyncrl.system.network import free_ports
from asyncrl.trainer.checkpoints.checkpoint_files import HashedFiles, State, read
from asyncrl.trainer.checkpoints.training_state import Box, SharedTensor


def save(folder: Path, fault: str, template: Template) -> tuple[list[int], str]:
    folder.mkdir()
    log = folder.with_name("log")
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_PORT": str(free_ports(1)[0])}
    with log.open("wb") as output:
        ranks = [
            template.start(
                "fakes.saving_worker",
                [str(folder), fault],
                environment=environment | {"RANK": str(rank)},
                output=output,
            )
            for rank in range(2)
        ]
    return finish_trainer(ranks, timeout_seconds=120), log.read_text()


def test_each_rank_writes_and_hashes_its_part_and_one_process_reads_both(template: Template, tmp_path: Path):
    codes, log = save(tmp_path / "part", "none", template)
    assert codes == [0, 0], log
    digests = json.loads((tmp_path / "part" / "digests.json").read_text())
    assert digests == {name: sha256_of(tmp_path / "part" / name) for name in digests}
    assert digests.keys() == {"__0_0.distcp", "__1_0.distcp", ".metadata"}
    # Other boxes than those that were written.
    found = torch.zeros(24)
    shared = SharedTensor((4, 6))
    shared.add(Box((0, 0), found[:18].view(3, 6)))
    shared.add(Box((3, 0), found[18:].view(1, 6)))
    state: State = {"numbers": shared, "common": None}
    read(state, tmp_path / "part")
    assert torch.equal(found, torch.arange(24.0)) and state["common"] == "said once"


@pytest.mark.parametrize(("fault", "codes"), [("full", [0, 0]), ("killed", [1, -signal.SIGKILL])])
def test_what_one_rank_cannot_write_fails_on_all(
    fault: str, codes: list[int], template: Template, tmp_path: Path
):
    found, log = save(tmp_path / "part", fault, template)
    assert found == codes, log
    assert "The one before it is intact. Free up disk space, or lower trainer.keep_checkpoints" in log
    # Nobody was told that it is complete, and what was begun takes no room.
    assert not (tmp_path / "part").exists()


def test_the_digest_is_that_of_the_file(tmp_path: Path):
    files = HashedFiles()
    with files.create_stream(tmp_path / "a", "wb") as stream:
        torch.save(torch.arange(1000), stream)
        stream.write(b"end")
    assert files.digests == {"a": sha256_of(tmp_path / "a")}


def test_the_digest_follows_a_new_name(tmp_path: Path):
    files = HashedFiles()
    with files.create_stream(tmp_path / "a.tmp", "wb") as stream:
        stream.write(b"index")
    files.rename(tmp_path / "a.tmp", tmp_path / "a")
    assert files.digests == {"a": hashlib.sha256(b"index").hexdigest()}


def test_a_file_that_broke_off_has_no_digest(tmp_path: Path):
    files = HashedFiles()
    with pytest.raises(RuntimeError), files.create_stream(tmp_path / "a", "wb") as stream:
        stream.write(b"half")
        raise RuntimeError
    assert files.digests == {}


def test_what_is_read_is_not_hashed(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"content")
    files = HashedFiles()
    with files.create_stream(tmp_path / "a", "rb") as stream:
        assert stream.read() == b"content"
    assert files.digests == {}
