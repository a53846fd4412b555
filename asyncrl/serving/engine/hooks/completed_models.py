"""Models that SGLang 0.5.23 would serve otherwise than transformers computes them: keys that config.json
lacks, latent attention, the head of a reward model.
"""

import torch

from asyncrl.model.families import FAMILIES

ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
"""Other families with latent attention have other epsilons."""

EPSILON = 1e-6

NORMS = ("q_a_layernorm", "kv_a_layernorm")

FUSED = "fused_qkv_a_proj_with_mqa"


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    return [
        # Where every class of configurations reads its file.
        ("transformers.configuration_utils.PreTrainedConfig.get_config_dict", _complete_config, "after"),
        # Before that of loaded_weights.py, which sees what is sent as it comes.
        ("sglang.srt.model_executor.model_runner.ModelRunner.load_model", _complete_model, "after"),
        (
            "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_and_postprocess",
            _start_at_zero,
            "before",
        ),
    ]


# Files of transformers 5 lack keys that SGLang reads and the trainer takes as implied: it would end, or serve
# another model than is trained.
def _complete_config(found, *_, **__):
    config, rest = found
    family = FAMILIES.get(next(iter(config.get("architectures") or ()), None))
    return None if family is None else (family.completed(config), rest)


# Latent attention (DeepSeek): epsilon of the norms of the short vectors is 1e-6 in transformers, whatever
# config.json says; SGLang takes rms_norm_eps for these too. And SGLang keeps q_a_proj and kv_a_proj_with_mqa
# in one matrix, which it fills only where one call of its loader brings both: an update comes in parts, and
# one that ends between the two would leave the old matrix without an error. Here each is written by itself.
class RowsLoader:
    """In the place of a model's `load_weights`: writes the rows of a fused matrix, leaves the rest to it."""

    def __init__(self, model):
        self._load = model.load_weights
        self._fused = {
            name.removesuffix(FUSED): module for name, module in model.named_modules() if name.endswith(FUSED)
        }

    def __call__(self, weights, *arguments, **named):
        return self._load(self._others(weights), *arguments, **named)

    def _others(self, weights):
        for name, tensor in weights:
            layer, _, matrix = name.removesuffix(".weight").rpartition(".")
            fused = self._fused.get(f"{layer}.")
            if fused is not None and matrix == "q_a_proj":
                fused.weight.data[: len(tensor)].copy_(tensor)
            elif fused is not None and matrix == "kv_a_proj_with_mqa":
                fused.weight.data[-len(tensor) :].copy_(tensor)
            else:
                yield name, tensor


def _complete_model(_, runner):
    modules = dict(runner.model.named_modules())
    if runner.model_config.hf_config.architectures[0] in ARCHITECTURES:
        for name, module in modules.items():
            if name.rpartition(".")[2] in NORMS:
                module.variance_epsilon = EPSILON
    if any(name.endswith(FUSED) for name in modules):
        runner.model.load_weights = RowsLoader(runner.model)


# SGLang gives the heads of Qwen2ForSequenceClassification and Qwen3ForSequenceClassification a bias.
# Checkpoints of these classes have none, so it stays at its random start: each number of the server is off by
# the same amount, of up to 1 / sqrt(hidden size).
def _start_at_zero(model, *_, **__):
    """A bias that the checkpoint has is loaded over it."""
    head = getattr(model, "score", None)
    if isinstance(head, torch.nn.Linear) and head.bias is not None:
        with torch.no_grad():
            head.bias.zero_()
