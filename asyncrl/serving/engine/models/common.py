"""Dense and sparse decoders that fit a CPU; importing SGLang's two hundred model files takes seconds."""

import torch
from sglang.srt.models import (
    deepseek_v2,
    glm4_moe,
    gpt_oss,
    llama,
    mixtral,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)


class GptOssForCausalLM(gpt_oss.GptOssForCausalLM):
    """gpt-oss in the type that the server computes in. SGLang 0.5.23 takes the weights' type from
    config.json, and bfloat16 for sinks."""

    def __init__(self, config, quant_config=None, prefix=""):
        config.dtype = torch.get_default_dtype()
        super().__init__(config, quant_config=quant_config, prefix=prefix)
        for layer in self.model.layers:
            attention = layer.self_attn
            sinks = torch.empty_like(attention.sinks, dtype=config.dtype)
            attention.sinks = torch.nn.Parameter(sinks, requires_grad=False)


EntryClass = [
    GptOssForCausalLM,
    *(
        entry
        for module in (deepseek_v2, glm4_moe, llama, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe)
        for entry in (module.EntryClass if isinstance(module.EntryClass, list) else [module.EntryClass])
    ),
]
