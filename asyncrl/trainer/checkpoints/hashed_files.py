"""Files that are hashed while they are written, so that a manifest costs no second reading."""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem


class HashedFiles(FileSystem):
    """Where torch.distributed.checkpoint writes to."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        """SHA-256 by the names of the files that are written."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if mode != "wb":
                yield stream
                return
            hashed = HashedStream(stream)
            try:
                yield hashed
            except Exception as error:
                # torch.save reports that its position is unexpected, and drops why.
                raise (hashed.refusal or error) from error
        self.digests[Path(path).name] = hashed.digest.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)


class HashedStream:
    """Written from begin to end; nothing in it is written twice."""

    def __init__(self, stream: io.IOBase) -> None:
        self._stream = stream
        self.refusal: OSError | None = None
        """Why the last write failed."""
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.digest.update(content)
        try:
            written: int = self._stream.write(content)
        except OSError as error:
            self.refusal = error
            raise
        return written

    def tell(self) -> int:
        return self._stream.tell()

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()
