"""A file of text that is replaced as a whole: a reader sees the old one or the new one, never half of it."""

import os
from pathlib import Path


def write_whole(target: Path, text: str) -> None:
    """Writes next to `target` and renames. Raises OSError, and then the former file is still there."""
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)
    except OSError:
        part.unlink(missing_ok=True)
        raise
