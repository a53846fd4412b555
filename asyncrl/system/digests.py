"""The SHA-256 of a file, by which checkpoints, data, wheels and fetched folders are recognized."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """In hexadecimal; reads every byte. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
