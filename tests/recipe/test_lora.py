"""The section model.lora: what is refused, and the learning rate that it has by default."""

import pytest

from asyncrl.errors import InputError
from asyncrl.recipe.file import parse_recipe

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
