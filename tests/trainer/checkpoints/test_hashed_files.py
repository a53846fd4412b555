import hashlib
from pathlib import Path

import pytest
import torch

from asyncrl.system.files import sha256_of
from asyncrl.trainer.checkpoints.checkpoint_files import HashedFiles


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
