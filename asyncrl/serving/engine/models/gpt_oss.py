"""gpt-oss on a CPU, in the type that the server computes in."""

import torch
from sglang.srt.models import gpt_oss


class GptOssForCausalLM(gpt_oss.GptOssForCausalLM):
    """SGLang 0.5.23 takes the weights' type from config.json, and bfloat16 for sinks."""

    def __init__(self, config, quant_config=None, prefix=""):
        config.dtype = torch.get_default_dtype()
        super().__init__(config, quant_config=quant_config, prefix=prefix)
        for layer in self.model.layers:
            attention = layer.self_attn
            sinks = torch.empty_like(attention.sinks, dtype=config.dtype)
            attention.sinks = torch.nn.Parameter(sinks, requires_grad=False)


EntryClass = GptOssForCausalLM
