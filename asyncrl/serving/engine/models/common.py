"""Dense and sparse decoders that fit a CPU; importing SGLang's two hundred model files takes seconds."""

from sglang.srt.models import glm4_moe, llama, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe

EntryClass = [
    entry
    for module in (glm4_moe, llama, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe)
    for entry in (module.EntryClass if isinstance(module.EntryClass, list) else [module.EntryClass])
]
