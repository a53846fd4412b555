"""Mistral: a Llama, of which the first version looks back on 4,096 tokens."""

from asyncrl.model.families.family import Family, sliding_window

MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    models="Mistral (7B, Nemo, Small)",
    settings=frozenset(("sliding_window",)),
    window=sliding_window,
)
