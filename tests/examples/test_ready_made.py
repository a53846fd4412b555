"""The base models that come with asyncrl: whole, of the options that recipes have, and of today's corpus."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.gym import NEEDS_GYM

from asyncrl.errors import InputError
from asyncrl.examples import gym_pretrain
from asyncrl.examples.pretrain import SumsOptions, draw_corpus, prepare
from asyncrl.examples.ready_made import MODELS, copy_model, keep_model
from asyncrl.recipe.file import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
OPTIONS = SumsOptions(task="arithmetic")
LOSS = 0.289
"""Nats per response token of the first 256 examples, as `python -m asyncrl.examples.ready_made` left it."""


def test_the_default_options_take_the_model_that_comes_with_asyncrl(tmp_path):
    told = []
    prepare(tmp_path, lambda *progress: told.append(progress), task="arithmetic")
    assert told == [("base model", 1, 1)]
    kept = (MODELS / "arithmetic" / "model.safetensors").read_bytes()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == kept
    assert (tmp_path / "model" / "tokenizer.json").is_file()


@NEEDS_GYM
def test_the_recipe_on_a_gym_takes_the_model_that_was_made_with_its_options(tmp_path):
    section = load_recipe(RECIPES / "r1_zero_reasoning_cpu.yaml").prepare
    told = []
    gym_pretrain.prepare(tmp_path, lambda *progress: told.append(progress), **section.options)
    assert told == [("base model", 1, 1)]
    kept = (MODELS / "reasoning" / "model.safetensors").read_bytes()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == kept
    assert (tmp_path / "model" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    "change",
    [{"task": "longtail"}, {"seed": 1}, {"num_heldout": 511}, {"wrong": 0.4}, {"learning_rate": 1e-3}],
    ids=str,
)
def test_other_options_have_no_ready_model(tmp_path, change):
    assert not copy_model(tmp_path / "model", OPTIONS.model_copy(update=change))
    assert not (tmp_path / "model").exists()


def test_a_changed_file_is_refused_with_the_knob_that_trains_it_here(tmp_path):
    shutil.copytree(MODELS, tmp_path / "models")
    weights = tmp_path / "models" / "arithmetic" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match=r"safetensors has changed .*prepare.options.ready_made to false"):
        copy_model(tmp_path / "model", OPTIONS, models=tmp_path / "models")
    assert not (tmp_path / "model").exists()


def test_a_kept_model_is_found_by_the_options_that_made_it(tmp_path):
    other = OPTIONS.model_copy(update={"seed": 7, "ready_made": False})
    keep_model(MODELS / "arithmetic", other, tmp_path / "models" / "seventh")
    assert not copy_model(tmp_path / "one", OPTIONS, models=tmp_path / "models")
    assert copy_model(tmp_path / "two", other, models=tmp_path / "models")
    assert json.loads((tmp_path / "two" / "config.json").read_text())["hidden_size"] == 128


def test_taking_it_loads_no_torch(tmp_path):
    program = (
        "import sys; from pathlib import Path; from asyncrl.examples.pretrain import prepare; "
        f"prepare(Path({str(tmp_path)!r}), lambda *told: None, task='arithmetic'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0


def test_the_ready_model_knows_the_corpus_that_its_options_draw(tmp_path):
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    from asyncrl.examples.base_model import IGNORED, make_batches
    from asyncrl.examples.rows import build_tokenizer

    examples = itertools.islice(draw_corpus(OPTIONS, []), 256)
    (batch,) = make_batches(build_tokenizer(), examples, examples_per_batch=256)
    model = AutoModelForCausalLM.from_pretrained(MODELS / "arithmetic", dtype=torch.float32)
    nats = num_targets = 0.0
    with torch.no_grad():
        for tokens, targets in batch:
            logits = model(tokens).logits.flatten(0, 1)
            nats += F.cross_entropy(logits, targets.flatten(), reduction="sum").item()
            num_targets += int((targets != IGNORED).sum())
    assert nats / num_targets == pytest.approx(LOSS, abs=0.02)
