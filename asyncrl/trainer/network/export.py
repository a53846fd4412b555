"""Weights on disk as a Hugging Face folder: the base model, what SGLang loads, and what transformers does.

Owns the reading and writing of safetensors. Every rank calls, to gather the weights; the first writes. The
bytes do not depend on the layout.
"""

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from asyncrl.model.folder import other_files
from asyncrl.model.weights import weight_files
from asyncrl.run.checkpoints import EXPORT
from asyncrl.serving.tensor_digest import tensor_digest
from asyncrl.system.files import fresh_part, replace, sync_tree, writing
from asyncrl.trainer.network.adapters import export_adapter
from asyncrl.trainer.network.convert import export_weights, load_adapters, load_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.ranks import ranks

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
SHARD_BYTES = 5 * 10**9
"""Size of one file, as transformers writes them."""
Weights = dict[str, Tensor]
"""By their Hugging Face names."""


def open_weights(folder: Path) -> Callable[[str], Tensor]:
    """A function from tensor name to tensor, over all safetensors files of `folder`; reads on demand."""
    files = [safetensors.safe_open(file, framework="pt") for file in weight_files(folder)]
    places = {name: file for file in files for name in file.keys()}
    return lambda name: places[name].get_tensor(name)


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the safetensors files of `folder`, one at a time."""
    for path in weight_files(folder):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)


def cut(weights: Iterable[tuple[str, Tensor]], *, max_bytes: int) -> Iterator[Weights]:
    """`weights` in their order, cut where a part would exceed `max_bytes`; a larger tensor goes alone."""
    part: Weights = {}
    num_bytes = 0
    for name, tensor in weights:
        if part and num_bytes + tensor.nbytes > max_bytes:
            yield part
            part, num_bytes = {}, 0
        part[name] = tensor
        num_bytes += tensor.nbytes
    if part:
        yield part


def file_names(count: int) -> list[str]:
    """Names of the files in a folder of `count` weight files, as transformers names them."""
    if count == 1:
        return [WEIGHTS]
    return [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]


def write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Writes model.safetensors or, above SHARD_BYTES, several files and the index that transformers reads.

    Takes one tensor at a time and holds one file's tensors, in the memory of the CPU.
    """
    parts, num_bytes = list[tuple[Path, list[str]]](), 0
    for part in cut(((name, tensor.cpu()) for name, tensor in weights), max_bytes=SHARD_BYTES):
        # How many files there are is known after the last one.
        path = folder / f"model-{len(parts)}.part"
        safetensors.torch.save_file(part, path, metadata={"format": "pt"})
        parts.append((path, list(part)))
        num_bytes += sum(tensor.nbytes for tensor in part.values())
        # While the next part is gathered this one takes no memory.
        del part
    places: dict[str, str] = {}
    for file, (path, held) in zip(file_names(len(parts)), parts, strict=True):
        path.rename(folder / file)
        places |= dict.fromkeys(held, file)
    if len(parts) > 1:
        write_index(folder, places, num_bytes=num_bytes)


def write_index(folder: Path, places: Mapping[str, str], *, num_bytes: int) -> None:
    """The index that transformers reads where there are several files. `places`: tensor -> its file."""
    index = {"metadata": {"total_size": num_bytes}, "weight_map": dict(sorted(places.items()))}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index, indent=2))


def export_model(model: Policy | PolicyModel, *, base: Path, target: Path) -> None:
    """Writes `target`: the model's weights with configuration and tokenizer of `base`.

    config.json names the weights' type and generation_config.json exists, whatever `base` has.
    """
    weights = export_weights(model)
    if not ranks.is_first():
        drain(weights)
        return
    part, kinds = fresh_part(target), set[str]()
    write_weights(part, _note_kinds(weights, kinds))
    for file in other_files(base):
        shutil.copyfile(file, part / file.name)
    if (templates := base / "additional_chat_templates").is_dir():
        shutil.copytree(templates, part / templates.name)
    (kind,) = kinds
    _write_configuration(part, kind)
    sync_tree(part)
    replace(part, target)


def export_version(model: Policy, checkpoint: Path, *, base: Path, base_name: str) -> Path:
    """A checkpoint as a Hugging Face folder in it; configuration and tokenizer are those of `base`.

    Under adapters these alone are beside it, as `peft` loads them for the model `base_name`. Raises
    DiskError.
    """
    folder = checkpoint / EXPORT
    with writing(f"{checkpoint.name} as a Hugging Face folder", checkpoint):
        export_model(model, base=base, target=folder)
        if model.lora is not None:
            export_adapter(model, base=base_name, target=checkpoint / "adapter")
            log.info("the adapter alone, as peft loads it, in %s", checkpoint / "adapter")
    return folder


def _note_kinds(weights: Iterable[tuple[str, Tensor]], kinds: set[str]) -> Iterator[tuple[str, Tensor]]:
    """The same tensors; the names of the types of matrices are in `kinds` afterwards."""
    for name, tensor in weights:
        # A bias per expert is float32, whatever the model is.
        if tensor.ndim > 1:
            kinds.add(str(tensor.dtype).removeprefix("torch."))
        yield name, tensor


def _write_configuration(folder: Path, kind: str) -> None:
    """Completes the files that were copied from the base model. `kind` is the weights' type."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # transformers 5 writes the first name, transformers 4 and SGLang read the second.
    config |= {"dtype": kind, "torch_dtype": kind}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = folder / "generation_config.json"
    if not generation.exists():
        ids = {name: config[name] for name in SPECIAL_IDS if config.get(name) is not None}
        generation.write_text(json.dumps({"_from_model_config": True, **ids}, indent=2) + "\n")


def drain(weights: Iterable[tuple[str, Tensor]]) -> None:
    """Gives this rank's part of an export to the ranks that receive tensors, of which it is none."""
    for _ in weights:
        raise AssertionError("this rank receives no more tensors")


def load_base(model: Policy, fetch: Callable[[str], Tensor], seed: int) -> str | None:
    """Makes the policy the base model, whose tensors `fetch` gives by their Hugging Face names.

    Under adapters, which are fresh then, it returns the base's digest: 16 hex digits over the tensors that
    any rank fetched.
    """
    if model.lora is None:
        load_weights(model, fetch)
        return None
    own: dict[str, str] = {}

    def watch(name: str) -> Tensor:
        tensor = fetch(name)
        own[name] = tensor_digest(tensor)
        return tensor

    load_weights(model, watch)
    start_adapters(model, seed)
    digests = {name: digest for each in ranks.gather(own) for name, digest in each.items()}
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:16]


def start_adapters(model: Policy, seed: int) -> None:
    """B of zeros, so that the policy is the base model, and A by Kaiming's uniform rule, as peft has it: each
    whole matrix from `seed` and its name."""
    load_adapters(model, partial(_first_value, seed))


def _first_value(seed: int, name: str, shape: tuple[int, int]) -> Tensor:
    if "lora_B" in name:
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    # Kaiming's bound for the slope sqrt(5), which torch and peft take for linear layers.
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
