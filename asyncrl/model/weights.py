"""The safetensors files of a model folder, read without torch, and the names of its tensors."""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from asyncrl.errors import InputError
from asyncrl.model.families import FAMILIES
from asyncrl.model.shape import ModelShape
from asyncrl.system.files import read_text
from asyncrl.system.words import as_written


def expected_tensors(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(Hugging Face name, size) of every tensor of the architecture."""
    hidden, family = shape.hidden_size, FAMILIES[shape.architecture]
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        for name, size in family.layer_tensors(shape.of_layer(layer)):
            yield f"model.layers.{layer}.{name}", size
    yield "model.norm.weight", (hidden,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab_size, hidden)


@functools.lru_cache(maxsize=64)
def num_parameters(shape: ModelShape) -> int:
    """Counted once per shape: a mixture of experts has tens of thousands of tensors."""
    return sum(math.prod(size) for _, size in expected_tensors(shape))


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TRAINED_FROM = ("F32", "BF16", "F16")
"""Types of tensors that can be trained from, as safetensors names them."""
WHOLE_BYTES = 1 << 29
"""Weights of fewer bytes are searched whole for numbers that are not finite, about 0.2 s."""
SAMPLE_BYTES = 1 << 16
"""Read at each end of every tensor of a larger model."""
_LFS_POINTER = b"version https://git-lfs"
_EXPONENTS: Mapping[str, tuple[str, int]] = {
    "F32": ("<u4", 0x7F800000),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
}
"""A number whose exponent bits are all set is an infinity or NaN."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    """Byte of the file at which it begins."""
    end: int


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that are the model in `path`: those that its index names; all where it has none.

    Raises InputError where there are none, one is missing, or a download is unfinished.
    """
    if unfinished := sorted(path.glob("*.incomplete")):
        raise InputError(f"{unfinished[0]} is an unfinished download. Fetch the model again.")
    files = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    if not index.is_file():
        if not files:
            raise InputError(f"{path} holds no *.safetensors file. Convert the weights to safetensors first.")
        return files
    named = sorted(set(_read_index(index).values()))
    if missing := [name for name in named if path / name not in files]:
        raise InputError(
            f"{path}: {INDEX} names {len(named)} files; {len(missing)} are missing, first {missing[0]}. "
            f"Fetch the model again."
        )
    if SINGLE not in named and path / SINGLE in files:
        raise InputError(
            f"{path} holds {SINGLE} and, in {INDEX}, other files: transformers would load {SINGLE}, SGLang "
            f"the others. Remove what is not the model."
        )
    return [path / name for name in named]


def read_weights(path: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape. Raises InputError for files that are missing, damaged, quantized or hold NaN."""
    headers = {file: list(read_header(file)) for file in weight_files(path)}
    num_bytes = sum(tensor.end - tensor.start for tensors in headers.values() for tensor in tensors)
    for file, tensors in headers.items():
        _refuse_not_finite(file, tensors, is_whole=num_bytes <= WHOLE_BYTES)
    return {tensor.name: tensor.shape for tensors in headers.values() for tensor in tensors}


def tensor_names(path: Path) -> set[str]:
    """Names of all tensors, by the headers alone. Raises InputError as `weight_files` does."""
    return {tensor.name for file in weight_files(path) for tensor in read_header(file)}


def _read_index(index: Path) -> dict[str, str]:
    try:
        content = json.loads(read_text(index))
    except InputError:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{index} is not an index of safetensors files: {error}") from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise InputError(
            f"{index} is not an index of safetensors files: weight_map is {as_written(found)[:80]}, expected "
            f"an object with the file of each tensor."
        )
    return found


def read_header(file: Path) -> Iterator[StoredTensor]:
    """8 bytes of length, then JSON (the safetensors format)."""
    try:
        with file.open("rb") as stream:
            first = stream.read(len(_LFS_POINTER))
            if first == _LFS_POINTER:
                raise InputError(
                    f"{file} is a pointer of Git LFS, not the weights. Run `git lfs pull` there."
                )
            stream.seek(0)
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        tensors = [
            StoredTensor(
                name,
                entry["dtype"],
                tuple(entry["shape"]),
                *(8 + length + offset for offset in entry["data_offsets"]),
            )
            for name, entry in header.items()
        ]
        end = max((tensor.end for tensor in tensors), default=8 + length)
        size = file.stat().st_size
    except (ValueError, KeyError, AttributeError, TypeError, OSError, MemoryError, OverflowError) as error:
        raise InputError(f"{file} is not a safetensors file: {error}") from error
    if size != end:
        raise InputError(
            f"{file} has {size:,} bytes, its header says {end:,}: it was not copied or downloaded in full. "
            f"Fetch it again."
        )
    for tensor in tensors:
        if tensor.kind not in TRAINED_FROM:
            raise InputError(
                f"{file}: tensor {tensor.name} is stored as {tensor.kind}; a quantized model cannot be "
                f"trained. Use the original, with weights in {', '.join(TRAINED_FROM)}."
            )
    yield from tensors


def _refuse_not_finite(file: Path, tensors: list[StoredTensor], *, is_whole: bool) -> None:
    with file.open("rb") as stream:
        for tensor in tensors:
            for start, end in _parts(tensor, is_whole=is_whole):
                if _has_not_finite(stream, tensor.kind, start, end):
                    raise InputError(
                        f"{file}: tensor {tensor.name} holds numbers that are not finite (NaN or infinity): "
                        f"every log-prob of this model would be NaN. Use another checkpoint."
                    )


def _parts(tensor: StoredTensor, *, is_whole: bool) -> list[tuple[int, int]]:
    if is_whole or tensor.end - tensor.start <= 2 * SAMPLE_BYTES:
        return [(tensor.start, tensor.end)]
    return [(tensor.start, tensor.start + SAMPLE_BYTES), (tensor.end - SAMPLE_BYTES, tensor.end)]


def _has_not_finite(stream: BinaryIO, kind: str, start: int, end: int) -> bool:
    numbers, exponent = _EXPONENTS[kind]
    stream.seek(start)
    read = stream.read(end - start)
    bits = np.frombuffer(read, dtype=numbers, count=len(read) // np.dtype(numbers).itemsize)
    return bool(((bits & exponent) == exponent).any())
