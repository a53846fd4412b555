"""Llama, and all that was built like it."""

from asyncrl.model.families.family import Family

LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    models="Llama (Llama 2 and 3, SmolLM2, R1-Distill-Llama)",
)
