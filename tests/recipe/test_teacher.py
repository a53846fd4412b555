"""The section `teacher`: what it cannot be beside, and what it makes of the other sections."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe.file import parse_recipe
from asyncrl.replay.settings import QueueSettings

ON = {"path": "teacher"}


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"teacher": {"coefficient": 2.0}}, "teacher.coefficient is set but teacher.path is not"),
        ({"teacher": {"top_k": 8}}, "teacher.top_k is set but teacher.path is not"),
        ({"teacher": {**ON, "coefficient": 0.0}}, "0 but teacher.top_k is not set: .* would teach nothing"),
        ({"teacher": {**ON, "top_k_coefficient": 0.5}}, "no forward KL that it could weigh"),
        ({"teacher": {**ON, "top_k": 8}, "rollout": {"top_p": 0.9, "top_k": 5}}, "rollout.top_k, top_p or"),
        ({"teacher": ON, "rollout": {"top_k": 5}}, "rollout.top_k, top_p or min_p is too: .* no KL"),
        ({"teacher": ON, "algorithm": {"advantage": "gae"}}, "the critic gives each token an advantage"),
        ({"teacher": ON, "algorithm": {"advantage": "remax"}}, "whose greedy responses are generated"),
        ({"teacher": ON, "algorithm": {"nll_coefficient": 0.1}}, "algorithm.nll_coefficient is set but"),
        ({"teacher": ON, "rollout": {"pilot_samples": 2}}, "rollout.pilot_samples is set but"),
        ({"teacher": ON, "data": {"selection": {"by": "learnable"}}}, "data.selection is set but"),
        ({"teacher": {**ON, "extra_arguments": ["--dtype", "auto"]}}, "teacher.extra_arguments"),
        ({"teacher": ON, "placement": {"teacher": [0, 1]}}, "placement.teacher names 2 GPU"),
        (
            {"teacher": ON, "cluster": {"backend": "ray", "shared_disk": False}},
            "only the policy's model is handed to other nodes",
        ),
        ({"teacher": ON, "stage": "sft"}, "teacher.path is 'teacher' but stage is sft"),
    ],
)
def test_what_a_teacher_cannot_be_beside_is_refused(
    tmp_path: Path, sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        make_recipe(tmp_path, **sections)


def test_alone_it_needs_no_group_and_every_group_teaches(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, teacher=ON, rollout={"samples_per_group": 1})
    assert not recipe.has_verdicts() and QueueSettings.of(recipe).always_teaches
    with pytest.raises(InputError, match="samples_per_group is 1 but algorithm.advantage grpo needs"):
        make_recipe(tmp_path, teacher={**ON, "with_reward": True}, rollout={"samples_per_group": 1})
    assert make_recipe(tmp_path, teacher={**ON, "with_reward": True}).has_verdicts()


def test_dynamic_sampling_is_allowed_beside_it_though_it_drops_nothing_then(tmp_path: Path) -> None:
    make_recipe(tmp_path, teacher={**ON, "with_reward": True}, algorithm={"preset": "dapo"})


def test_its_server_is_one_of_its_own(tmp_path: Path) -> None:
    recipe = make_recipe(
        tmp_path,
        teacher={**ON, "dtype": "float32", "max_total_tokens": 4096},
        serving={"num_servers": 3, "max_total_tokens": 512},
    )
    own = recipe.of_teacher()
    assert (own.model.path, own.model.dtype) == ("teacher", "float32")
    assert (own.serving.num_servers, own.serving.max_total_tokens) == (1, 4096)
    elsewhere = make_recipe(tmp_path, teacher={**ON, "url": "http://127.0.0.1:1"})
    assert (recipe.teacher.num_started(), elsewhere.teacher.num_started()) == (1, 0)


RAW = {
    "name": "test",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl"},
    "evaluation": {"every_steps": 0},
}


def with_lora(lora: dict | None = None, **sections: dict):
    model = RAW["model"] | {"lora": {"rank": 8} | (lora or {})} | sections.pop("model", {})
    return parse_recipe({**RAW, "model": model, **sections}, source="test")


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"rank": 0}, "model.lora.rank is 0"),
        ({"alpha": 0.0}, "model.lora.alpha is 0.0"),
        ({"alpha": -1.0}, "model.lora.alpha is -1.0"),
        (
            {"targets": ["q_prj"]},
            "model.lora.targets has 'q_prj', which gets no adapter. Did you mean q_proj?",
        ),
        ({"targets": ["lm_head"]}, "Known: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj."),
        ({"targets": ["q_proj", "q_proj"]}, "expected each name once"),
        ({"targets": []}, "model.lora.targets"),
        ({"dropout": 0.1}, "model.lora.dropout is 0.1: with dropout the trainer's log-probs are not those"),
    ],
)
def test_what_cannot_work_is_refused_with_the_key(lora: dict, words: str):
    with pytest.raises(InputError) as refused:
        with_lora(lora)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trainer": {"optimizer": "muon"}}, "trainer.optimizer is muon but model.lora is set"),
        ({"trainer": {"splits_staleness": True}}, "trainer.splits_staleness is true but model.lora is set"),
        ({"model": {"bitwise_agreement": True}}, "model.bitwise_agreement is true but model.lora is set"),
        ({"model": {"dtype": "float16"}}, "model.dtype is float16 but model.lora is set"),
        (
            {"algorithm": {"kl": {"coefficient": 0.1, "refresh_steps": 4}}},
            "algorithm.kl.refresh_steps is 4 but model.lora is set",
        ),
        ({"trainer": {"optimizer_cpu_offload": True}}, "trainer.optimizer_cpu_offload is true"),
    ],
)
def test_what_makes_no_sense_beside_an_adapter_is_refused(sections: dict, words: str):
    with pytest.raises(InputError) as refused:
        with_lora(**sections)
    assert words in str(refused.value)


def test_a_rank_is_needed():
    with pytest.raises(InputError, match="model.lora.rank is missing"):
        parse_recipe({**RAW, "model": {"path": "model", "lora": {}}}, source="test")


def test_the_default_learning_rate_is_ten_times_that_of_all_weights():
    full = parse_recipe({**RAW, "model": {"path": "model"}}, source="test")
    assert with_lora().trainer.learning_rate == pytest.approx(10 * full.trainer.learning_rate)
    assert with_lora().critic.learning_rate == full.critic.learning_rate
    assert with_lora().policy_schedule().peak == with_lora().trainer.learning_rate
    # That of a preset is a default, too.
    scale_rl = with_lora(algorithm={"preset": "scale_rl"})
    assert scale_rl.trainer.learning_rate == pytest.approx(5e-6) and scale_rl.trainer.warmup_steps == 100


def test_a_stated_learning_rate_is_never_multiplied():
    for preset in ({}, {"preset": "scale_rl"}):
        recipe = with_lora(algorithm=preset, trainer={"learning_rate": 1e-6})
        assert recipe.trainer.learning_rate == 1e-6
    # A resolved recipe states it: reading it again changes nothing.
    once = with_lora()
    again = parse_recipe(once.model_dump(mode="json"), source="test")
    assert again.trainer.learning_rate == once.trainer.learning_rate
