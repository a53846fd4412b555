"""Weights on disk as a Hugging Face folder: what SGLang loads at a publish, and transformers after the run.

Owns the reading and writing of safetensors. Every rank calls, to gather the weights; the first writes. The
bytes do not depend on the layout.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from asyncrl.model.folder import other_files
from asyncrl.model.weights import weight_files
from asyncrl.system.folders import fresh_part, replace, sync_tree
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.ranks import ranks

WEIGHTS = "model.safetensors"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
SHARD_BYTES = 5 * 10**9
"""Size of one file, as transformers writes them."""


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


def write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Writes model.safetensors or, above SHARD_BYTES, several files and the index that transformers reads.

    Takes one tensor at a time and holds one file's tensors, in the memory of the CPU.
    """
    files: list[dict[str, Tensor]] = [{}]
    names: list[list[str]] = []
    total = held = 0
    for name, tensor in weights:
        if held and held + tensor.nbytes > SHARD_BYTES:
            names.append(_write_shard(folder, len(names), files.pop()))
            files.append({})
            held = 0
        files[-1][name] = tensor.cpu()
        held += tensor.nbytes
        total += tensor.nbytes
    names.append(_write_shard(folder, len(names), files.pop()))
    if len(names) == 1:
        os.rename(folder / _part_name(0), folder / WEIGHTS)
        return
    places: dict[str, str] = {}
    for i, held_names in enumerate(names):
        file = f"model-{i + 1:05d}-of-{len(names):05d}.safetensors"
        os.rename(folder / _part_name(i), folder / file)
        places |= dict.fromkeys(held_names, file)
    write_index(folder, places, num_bytes=total)


def write_index(folder: Path, places: Mapping[str, str], *, num_bytes: int) -> None:
    """The index that transformers reads where there are several files. `places`: tensor -> its file."""
    index = {"metadata": {"total_size": num_bytes}, "weight_map": dict(sorted(places.items()))}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index, indent=2))


def _part_name(number: int) -> str:
    # How many files there are is known after the last one.
    return f"model-{number}.part"


def _write_shard(folder: Path, number: int, weights: dict[str, Tensor]) -> list[str]:
    safetensors.torch.save_file(weights, folder / _part_name(number), metadata={"format": "pt"})
    return list(weights)


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


def _note_kinds(weights: Iterable[tuple[str, Tensor]], kinds: set[str]) -> Iterator[tuple[str, Tensor]]:
    """The same tensors; the names of their types are in `kinds` afterwards."""
    for name, tensor in weights:
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
