"""A reward model's head has no bias that its checkpoint does not have.

SGLang 0.5.23 gives the heads of Qwen2ForSequenceClassification and Qwen3ForSequenceClassification a bias.
Checkpoints of these classes have none, so it stays at its random start: each number of the server is off by
the same amount, of up to 1 / sqrt(hidden size).
"""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_and_postprocess",
        _start_at_zero,
        HookType.BEFORE,
    )


def _start_at_zero(model, *_, **__):
    """A bias that the checkpoint has is loaded over it."""
    head = getattr(model, "score", None)
    if isinstance(head, torch.nn.Linear) and head.bias is not None:
        with torch.no_grad():
            head.bias.zero_()
