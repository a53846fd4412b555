"""Dense and sparse decoders that fit a CPU; importing SGLang's two hundred model files takes seconds."""

from sglang.srt.models import deepseek_v2, glm4_moe, llama, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe

EntryClass = [
    entry
    for module in (deepseek_v2, glm4_moe, llama, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe)
    for entry in (module.EntryClass if isinstance(module.EntryClass, list) else [module.EntryClass])
]
