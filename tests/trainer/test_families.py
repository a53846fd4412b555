"""Each family on a real server: the trainer finds the log-probs that it sends, before and after a publish.

tests/trainer/network/test_model.py compares all families with transformers, test_layouts.py their layouts.
"""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from fakes.learners import make_learner
from serving.engine.servers import new_session, publish, running_server, write_model
from trainer.test_engine_logprobs import sample

from asyncrl.records import Batch
from asyncrl.trainer.network.export import export_model
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.publishing.publish import Publisher
from asyncrl.trainer.step.learner import Learner

GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.1,
    "logits_scaling": 0.5,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
# SGLang's mixtures of experts have an output layer of their own.
EXPERTS |= {"tie_word_embeddings": False}
GLM4_MOE = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
GLM4_MOE |= {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "attention_bias": True}
GLM4_MOE |= {"tie_word_embeddings": False}
GPT_OSS = {"pad_token_id": None, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}
GPT_OSS |= {"swiglu_limit": 1.0, "tie_word_embeddings": False, "context": 128}
NEXT = EXPERTS | {"shared_expert_intermediate_size": 128, "full_attention_interval": 3}
NEXT |= {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
NEXT |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
NEXT |= {"linear_key_head_dim": 24, "linear_value_head_dim": 32}
DEEPSEEK = {"num_kv_heads": 4, "first_k_dense_replace": 1}
DEEPSEEK |= {"q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16}
DEEPSEEK |= {"v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 96}
DEEPSEEK |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.8, "moe_layer_freq": 1}
DEEPSEEK |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "tie_word_embeddings": False}
LITE = DEEPSEEK | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 8.0,
    "low_freq_factor": 1.5,
    "high_freq_factor": 6.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 300.0,
    "short_factor": [1.0 + i / 4 for i in range(12)],
    "long_factor": [2.0 + i for i in range(12)],
}
PHI4_MINI = {"pad_token_id": None, "partial_rotary_factor": 0.75, "rope_parameters": LONGROPE}
PHI4_MINI |= {"original_max_position_embeddings": 64, "context": 512}
LINEAR = {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {
    "pad_token_id": None,
    # transformers 5 does not write it, SGLang reads it.
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 9,
    "layer_types": SLIDING,
    "query_pre_attn_scalar": 20,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": None}),
    "phi3": ("phi3", {"pad_token_id": None}),
    "phi4-mini": ("phi3", PHI4_MINI),
    "granite": ("granite", GRANITE),
    "yarn": ("qwen3", {"rope_parameters": YARN, "context": 128}),
    "llama3, other numbers": ("llama", {"rope_parameters": LLAMA3, "context": 128}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "tie_word_embeddings": False}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}),
    "qwen2_moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 128}),
    "qwen3_next": ("qwen3_next", NEXT),
    "glm4_moe": ("glm4_moe", GLM4_MOE),
    "gpt-oss": ("gpt_oss", GPT_OSS | {"rope_parameters": YARN | {"truncate": False}}),
    "linear": ("qwen2", {"rope_parameters": LINEAR, "context": 128}),
    "olmo2": ("olmo2", {"pad_token_id": None}),
    "smollm3": ("smollm3", {"pad_token_id": None, "no_rope_layer_interval": 2}),
    "glm4": (
        "glm4",
        {"pad_token_id": None, "rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 0.5}},
    ),
    "gemma2": (
        "gemma2",
        GEMMA | {"layer_types": None, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 8.0},
    ),
    "gemma3": ("gemma3_text", GEMMA),
    "olmo3": ("olmo3", {"pad_token_id": None, "sliding_window": 9, "layer_types": SLIDING}),
}
MSCALES = {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, "context": 128}
FAMILIES |= {
    "deepseek_v3": ("deepseek_v3", DEEPSEEK | MSCALES),
    "deepseek_v3, whole queries": ("deepseek_v3", LITE | {"rms_norm_eps": 1e-3}),
    "deepseek_v2": (
        "deepseek_v2",
        LITE | MSCALES | {"topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False},
    ),
}
BIASES = {"router": {"bias_update_rate": 0.1}}
TRAINER = {"glm4_moe": BIASES, "deepseek_v3": BIASES}
IN_MAKE_TEST = ("granite",)
TEMPERATURE = 0.6


def largest_difference(learner: Learner, batch: Batch) -> float:
    """Between the server's log-probs and the trainer's."""
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    (found,) = learner.passes.logprobs(learner.parallel_chunks, [micro], batch.temperature)
    return (found - micro.behavior).abs().max().item()


def write_as_published(file: Path) -> None:
    """OLMo 3's keys of transformers 4, which SGLang reads; only full layers are scaled."""
    config = json.loads(file.read_text())
    del config["rope_parameters"]
    yarn = {key: value for key, value in YARN.items() if key != "rope_theta"}
    file.write_text(json.dumps(config | {"rope_theta": 500000.0, "rope_scaling": yarn}))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.exhaustive) for name in FAMILIES],
)
def test_server_and_trainer_agree_before_and_after_a_publish(name: str, tmp_path: Path) -> None:
    family, settings = FAMILIES[name]
    model = write_model(tmp_path / "model", seed=0, family=family, **settings)
    if family == "olmo3":
        write_as_published(model / "config.json")
    learner = make_learner(model, trainer={"learning_rate": 1e-2} | TRAINER.get(name, {}))

    async def install(folder: Path) -> None:
        async with new_session() as session:
            await publish(session, url, folder, 1)
            # Unlike a run's, these requests do not name their version: they would find old prefixes.
            async with session.post(f"{url}/flush_cache") as reply:
                assert reply.status == 200

    with running_server(model, tmp_path / "server.log") as (url, _):
        first = Batch(0, TEMPERATURE, sample(url, TEMPERATURE))
        assert largest_difference(learner, first) < 1e-4
        learner.step(first)
        export_model(learner.model, base=model, target=tmp_path / "next")
        asyncio.run(install(tmp_path / "next"))
        second = Batch(1, TEMPERATURE, sample(url, TEMPERATURE))
        assert largest_difference(learner, second) < 1e-4
        assert largest_difference(make_learner(model), second) > 1e-3, "the step changed too little"


@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", ["disk", "distributed"])
def test_matrices_that_a_server_keeps_in_one_arrive_in_parts(transport: str, tmp_path: Path) -> None:
    """q_a_proj and kv_a_proj_with_mqa, in buckets of their own; digests confirm each version."""
    family, settings = FAMILIES["deepseek_v3"]
    model = write_model(tmp_path / "model", seed=0, family=family, **settings)
    learner = make_learner(model, trainer={"learning_rate": 1e-2})
    publisher = Publisher(
        tmp_path / "publications",
        base=model,
        transport=transport,
        bucket_bytes=20_000,
        failed=pytest.fail,
    )
    with running_server(model, tmp_path / "server.log") as (url, _):
        for version in (1, 2):
            learner.step(Batch(version, TEMPERATURE, sample(url, TEMPERATURE)))
            publication = publisher.prepare(version, learner.model)
            (outcome,) = publisher.install(publication, learner.model, [url]).values()
            assert outcome.is_installed, outcome.detail
            urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST"))
            batch = Batch(version, TEMPERATURE, sample(url, TEMPERATURE))
            assert largest_difference(learner, batch) < 1e-4
    publisher.close()
