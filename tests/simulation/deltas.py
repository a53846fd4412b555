"""Weights as bytes, for schedules with deltas: one tensor that says which version it is, and filler."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from asyncrl.model.weights import read_header
from asyncrl.records import PolicyVersion
from asyncrl.serving.delta import Change, bytes_digest, encode, write_changes, write_manifest

Words = npt.NDArray[np.uint16]
NUM_WORDS = 64
FILE = "model.safetensors"


def words_of(name: str, filler: int) -> Words:
    """The tensor of the weights `name`. Those of another `filler` differ in most words."""
    text = f"{name}|".encode().ljust(2 * NUM_WORDS, bytes([97 + filler % 26]))
    return np.frombuffer(text, np.uint16).copy()


def write_weights(folder: Path, words: Words) -> None:
    safetensors.numpy.save_file({"w": words.view(np.float16)}, folder / FILE)


def name_in(folder: Path) -> str | None:
    """The weights in a copy; None for bytes that are no version's."""
    (tensor,) = read_header(folder / FILE)
    text = (folder / FILE).read_bytes()[tensor.start : tensor.end]
    name, mark, filler = text.partition(b"|")
    return name.decode("ascii", "replace") if mark and len(set(filler)) == 1 else None


def damage(folder: Path) -> None:
    """Flips a bit of the filler."""
    with (folder / FILE).open("r+b") as file:
        file.seek(-1, 2)
        (byte,) = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))


def changed_share(old: Words, new: Words) -> float:
    return float((old != new).mean())


def write_delta(folder: Path, old: Words, new: Words, version: PolicyVersion) -> None:
    (positions,) = np.nonzero(old != new)
    data = encode(positions, (old ^ new)[positions], is_compressed=version % 2 == 0)
    digests = bytes_digest(old.view(np.uint8)), bytes_digest(new.view(np.uint8))
    folder.mkdir()
    write_changes(folder / "changes-0.safetensors", {"w": Change(data, *digests)})
    write_manifest(folder, {"w": digests}, version=version)
