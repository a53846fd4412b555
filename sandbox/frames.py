"""Messages between the host process and a worker: a JSON header and byte strings, length first."""

import json
import struct
from collections.abc import Sequence
from typing import Any

PREFIX = struct.Struct(">IQ")
"""Header bytes, body bytes."""


def pack(header: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """One message; the header gains the sizes of the blobs."""
    text = json.dumps(header | {"sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([PREFIX.pack(len(text), sum(map(len, blobs))), text, *blobs])


def unpack(header: bytes, body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the blobs of one message."""
    fields: dict[str, Any] = json.loads(header)
    blobs, offset = [], 0
    for size in fields["sizes"]:
        blobs.append(body[offset : offset + size])
        offset += size
    return fields, blobs
