"""Models with latent attention (DeepSeek) compute what transformers does, and load what they are sent.

Epsilon of the norms of the short vectors is 1e-6 in transformers, whatever config.json says; SGLang 0.5.23
takes rms_norm_eps for these too. And SGLang keeps q_a_proj and kv_a_proj_with_mqa in one matrix, which it
fills only where one call of its loader brings both: an update comes in parts, and one that ends between the
two would leave the old matrix without an error. Here each is written by itself.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
"""Other families with latent attention have other epsilons."""
EPSILON = 1e-6
NORMS = ("q_a_layernorm", "kv_a_layernorm")
FUSED = "fused_qkv_a_proj_with_mqa"


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded. It comes before that of
    loaded_weights.py, which sees what is sent as it comes."""
    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model", _complete, HookType.AFTER
    )


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


def _complete(_, runner):
    modules = dict(runner.model.named_modules())
    if runner.model_config.hf_config.architectures[0] in ARCHITECTURES:
        for name, module in modules.items():
            if name.rpartition(".")[2] in NORMS:
                module.variance_epsilon = EPSILON
    if any(name.endswith(FUSED) for name in modules):
        runner.model.load_weights = RowsLoader(runner.model)
