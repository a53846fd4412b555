"""The families of models that are trained, by the architecture that config.json names
(docs/models.md#adding-a-family)."""

from asyncrl.model.families.family import Config, Family
from asyncrl.model.families.glm_deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4, GLM4_MOE
from asyncrl.model.families.llama import GRANITE, LLAMA, MISTRAL, MIXTRAL, PHI3, QWEN2, QWEN3, SMOLLM3
from asyncrl.model.families.qwen_experts import QWEN2_MOE, QWEN3_MOE, QWEN3_NEXT
from asyncrl.model.families.sliding import GEMMA2, GEMMA3, GPT_OSS, OLMO2, OLMO3

FAMILIES: dict[str, Family] = {
    family.architecture: family
    for family in (
        *(LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, QWEN2_MOE, QWEN3_NEXT, MIXTRAL, GLM4_MOE, GPT_OSS),
        *(DEEPSEEK_V3, DEEPSEEK_V2, PHI3, GRANITE, OLMO2, OLMO3, SMOLLM3, GLM4, GEMMA2, GEMMA3),
    )
}


def nearest(config: Config) -> Family:
    """The family that reads most of what `config` has, and least else."""

    said = {key for key, value in config.items() if value is not None}

    def likeness(family: Family) -> int:
        return len(family.settings & said) - len(family.settings - said)

    return max(FAMILIES.values(), key=likeness)
