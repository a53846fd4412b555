import hashlib
from pathlib import Path

import pytest

from asyncrl.system.digests import sha256_of


def test_the_digest_is_of_every_byte(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content := bytes(range(256)) * 9000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_missing_file_is_an_error_of_its_reader(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256_of(tmp_path / "file")
