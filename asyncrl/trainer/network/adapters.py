"""The adapters of a whole policy: the base model without them, and a folder for `peft`. Every rank calls."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from asyncrl.recipe.sections.model import Lora
from asyncrl.system.files import fresh_part, replace, sync_tree
from asyncrl.trainer.network.adapted_layers import adapted_layers
from asyncrl.trainer.network.convert import PEFT, export_weights
from asyncrl.trainer.network.experts import is_of_expert
from asyncrl.trainer.network.model import Policy
from asyncrl.trainer.ranks import ranks

PEFT_WEIGHTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"
STACKED = r".*\.gate_up_proj"
"""peft's pattern of the gate and up matrices of all experts of a layer."""


@contextlib.contextmanager
def without_adapters(model: Policy) -> Iterator[None]:
    """Within, the policy is the base model."""
    layers = list(adapted_layers(model))
    for layer in layers:
        layer.is_adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_adapted = True


def export_adapter(model: Policy, *, base: str, target: Path) -> None:
    """Writes `target` as `peft` saves an adapter; `base` is the model that it belongs to, by path or hub id.

    Experts have an adapter each, by the names of their matrices in the folder. transformers 5 stacks these,
    gate and up in one tensor; peft 0.21 stacks the adapters as it loads them.
    """
    weights = dict(export_weights(model, torch.nn.Parameter.detach, of_adapters=True))
    if not ranks.is_first():
        return
    assert model.lora is not None
    part = fresh_part(target)
    kept = {name: tensor.cpu() for name, tensor in weights.items()}
    safetensors.torch.save_file(kept, part / PEFT_WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": model.lora.rank,
        "lora_alpha": model.lora.alpha,
        "lora_dropout": 0.0,
        **_peft_targets(weights, model.lora),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    (part / PEFT_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    sync_tree(part)
    replace(part, target)


def _peft_targets(names: Iterable[str], lora: Lora) -> dict[str, Any]:
    """The keys of adapter_config.json that name the matrices with adapters of these `names`.

    Names of modules alone, where peft 0.21 finds them all. Where experts are stacked it takes gate_proj for a
    part of these and overlooks shared experts and layers without experts. There all feed-forward matrices
    are named as parameters, the stacked ones as transformers 5 has them.
    """
    matrices = {name.removeprefix(PEFT).partition(".lora_")[0] for name in names}
    targets = {name.rpartition(".")[2] for name in matrices}
    alone = {name for name in matrices if ".mlp." in name and not is_of_expert(name)}
    stacked = {name.rpartition(".")[2] for name in matrices if is_of_expert(name)}
    if not alone or not stacked:
        return {"target_modules": sorted(targets)}
    parameters = {f"{name}.weight" for name in alone}
    found: dict[str, Any] = {}
    if "down_proj" in stacked:
        parameters.add("experts.down_proj")
    if "gate_proj" in stacked:
        parameters.add("experts.gate_up_proj")
        # Two matrices with an adapter each: twice the rank at the same scale.
        found["rank_pattern"] = {STACKED: 2 * lora.rank}
        found["alpha_pattern"] = {STACKED: 2 * lora.alpha}
    modules = {name.rpartition(".")[2] for name in matrices - alone if not is_of_expert(name)}
    return found | {"target_modules": sorted(modules), "target_parameters": sorted(parameters)}
