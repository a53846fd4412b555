"""What a new user has on disk: a recipe that would run, four rows, a tiny model without a trained weight."""

import json
import struct
from pathlib import Path
from typing import Any

from fakes.model_folder import CHARACTERS, write_tokenizer
from fakes.records import make_queue

from asyncrl.model.folder import read_shape
from asyncrl.model.weights import expected_tensors

RECIPE = """\
name: mine
model:
  path: model
data:
  train: train.jsonl
  heldout: heldout.jsonl
rollout:
  max_new_tokens: 16
"""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 16,
    "vocab_size": len(CHARACTERS) + 3,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


def row(prompt: Any = "1+1=", answer: Any = "2", **fields: Any) -> str:
    return json.dumps({"prompt": prompt, "answer": answer, **fields})


def write_project(folder: Path) -> None:
    """recipe.yaml, train.jsonl, heldout.jsonl, model/: `asyncrl check recipe.yaml` accepts them."""
    (folder / "recipe.yaml").write_text(RECIPE)
    for name, first in (("train", 1), ("heldout", 5)):
        rows = [row(f"{n}+1=", str(n + 1)) for n in range(first, first + 4)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    write_tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    write_zeros(folder / "model")


def begin_run(folder: Path) -> Path:
    """runs/old of a project, as a run leaves it that has trained nothing."""
    run = folder / "runs" / "old"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(RECIPE.replace(": model", ": ../../model"))
    queue = make_queue(run)
    queue.announce(0)
    queue.journal.close()
    return run


def write_zeros(model: Path, *, dtype: str = "F32", num_missing_bytes: int = 0) -> None:
    """The safetensors file that config.json asks for, without numpy and torch; all weights are 0."""
    header: dict[str, Any] = {}
    end, size = 0, {"F32": 4, "BF16": 2, "F8_E4M3": 1}[dtype]
    for name, shape in expected_tensors(read_shape(model)):
        begin, end = end, end + size * (shape[0] * (shape[1] if len(shape) == 2 else 1))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(end - num_missing_bytes)
    (model / "model.safetensors").write_bytes(content)
