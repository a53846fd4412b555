"""Digests that tell whether data changed between two starts of a run, and whether two prompts ask the
same.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from asyncrl.data.files import PATTERNS
from asyncrl.data.gym import gym_digest
from asyncrl.data.harbor import task_folders
from asyncrl.errors import InputError
from asyncrl.recipe import Source
from asyncrl.system.files import sha256_of
from asyncrl.system.hub import fetch, is_hub_id


def digest_of(sources: Sequence[Source], key: str) -> str:
    """SHA-256 over files, commits of hub ids, gyms and files of columns; that of the file for a single one.

    Raises InputError for what cannot be read.
    """
    parts = [part for source in sources for part in _parts(source, key)]
    return parts[0] if len(parts) == 1 else hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _parts(source: Source, key: str) -> Iterator[str]:
    if source.path is None:
        yield gym_digest(source, key)
        return
    path = Path(source.path)
    if is_hub_id(source.path):
        yield fetch(source.path, source.revision, kind="dataset", key=key, files=PATTERNS).commit
    elif path.is_dir():
        path = path / (source.folder or "")
        patterns = ("*",) if task_folders(path) else PATTERNS
        for file in sorted({file for pattern in patterns for file in path.rglob(pattern) if file.is_file()}):
            yield f"{file.relative_to(path)} {_file_digest(file, key)}"
    else:
        yield _file_digest(path, key)
    if isinstance(source.columns, str) and ".py:" in source.columns:
        yield _file_digest(Path(source.columns.rpartition(":")[0]), key)


def _file_digest(path: Path, key: str) -> str:
    try:
        found = path.stat()
        return _digest_of_state(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    except OSError as error:
        raise InputError(f"{key} names {path}, which cannot be read: {error}") from error


@lru_cache(maxsize=1024)
def _digest_of_state(path: Path, *_state: int) -> str:
    """Digest of a file in this state, kept: a start asks for it twice, for its table and its run folder."""
    return sha256_of(path)


DIGEST_BYTES = 16


def question_digest(prompt: str | Iterable[dict[str, Any]]) -> bytes:
    """The digest of a text, or of the user's messages in a chat."""
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        texts = [str(message.get("content")) for message in prompt if message.get("role") == "user"]
    text = "\0".join(" ".join(each.split()) for each in texts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
