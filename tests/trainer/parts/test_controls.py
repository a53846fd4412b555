"""Parts that set a number of the step: entropy bonus, experts' loads and biases."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.loss_inputs import make_inputs
from fakes.models import random_batch
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape
from families.known import write_tiny

from asyncrl.algorithms.losses import make_loss
from asyncrl.errors import InputError
from asyncrl.model.families.family import EXPERT_BIAS as BIAS
from asyncrl.recipe import Algorithm
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.network.convert import exported_tensors
from asyncrl.trainer.network.export import export_model, open_weights
from asyncrl.trainer.parts.controls import EntropyTarget, ExpertLoads, load_metrics
from asyncrl.trainer.parts.reference import PastVersions, Reference


def test_the_weight_rises_at_or_below_the_target_falls_above_it_and_is_off_there():
    keys = {"entropy_bonus": {"target": 0.2, "step": 0.25, "coefficient": 0.5}}
    control = EntropyTarget(None, make_recipe(Path("m"), algorithm=keys))
    seen = [control.coefficient()]
    for entropy in (0.3, 0.1, 0.2, 0.1, 0.1, math.nan, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1):
        control.saw(entropy)
        seen.append(control.coefficient())
    # c is 0.5, 0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0.25.
    assert seen == [0.5, 0.0, 0.5, 0.75, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25]


def test_the_weight_of_the_step_takes_the_place_of_the_recipe_s_in_the_loss():
    inputs = make_inputs(current=[-1.0, -2.0], advantages=[0.0, 0.0], entropies=[1.0, 3.0])
    loss = make_loss(Algorithm(entropy_bonus={"coefficient": 0.5}), max_new_tokens=8)
    total = loss(dataclasses.replace(inputs, entropy_coefficient=0.02)).total
    assert total.item() == pytest.approx(-0.08)
    (slopes,) = torch.autograd.grad(total, inputs.entropies)
    assert slopes.tolist() == pytest.approx([-0.02, -0.02])
    assert loss(dataclasses.replace(inputs, entropy_coefficient=0.0)).total.item() == 0.0


def test_a_step_from_a_checkpoint_has_the_weight_and_the_weights_of_one_without(folder: Path, tmp_path: Path):
    keys = {"entropy_bonus": {"target": 100.0, "step": 0.02}}
    # Without advantages too: the bonus alone teaches, where its weight is above 0.
    batches = [random_batch(step, num_silent=(0, 4, 2)[step]) for step in range(3)]
    learner = make_learner(folder, algorithm=keys)
    seen = [learner.step(batch)["entropy_coefficient"] for batch in batches[:2]]
    assert seen == [0.0, 0.02]
    checkpoints = Checkpoints(tmp_path, num_kept=1)
    checkpoints.save(learner, 2)
    resumed = make_learner(folder, algorithm=keys)
    assert checkpoints.load_newest(resumed) == 2
    metrics = [each.step(batches[2]) for each in (learner, resumed)]
    assert metrics[0] == pytest.approx(metrics[1], rel=0, abs=0, nan_ok=True)
    assert metrics[0]["entropy_coefficient"] == 0.04
    left, right = (copy_weights(each.model) for each in (learner, resumed))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_first_weight_above_the_largest_is_refused():
    algorithm = {"entropy_bonus": {"target": 0.2, "coefficient": 0.5, "max_coefficient": 0.1}}
    with pytest.raises(InputError, match="entropy_bonus.coefficient is 0.5 but .* 0.1"):
        make_recipe(Path("m"), algorithm=algorithm)


RATE = 0.05


def test_loads_are_those_of_the_layer_where_they_are_worst():
    # Two of four experts a token: 10 tokens in either layer; the first layer has no experts.
    loads = torch.tensor([[0, 0, 0, 0], [5, 5, 5, 5], [10, 8, 2, 0]], dtype=torch.float64)
    found = load_metrics(loads, dataclasses.replace(tiny_shape(), num_experts=4, experts_per_token=2))
    assert found == {"expert_load_max": 2.0, "busiest_expert_share": 1.0, "idle_expert_share": 0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model"), "Glm4MoeForCausalLM", num_hidden_layers=3)


def test_biases_follow_the_loads_of_all_response_tokens_and_stay_float32(folder: Path, tmp_path: Path):
    learner = make_learner(
        folder, model={"dtype": "bfloat16"}, trainer={"router": {"bias_update_rate": RATE}}
    )
    batch = random_batch(0)
    before, base = copy_weights(learner.model), open_weights(folder)
    metrics = learner.step(batch)
    after, loads = copy_weights(learner.model), learner.part(ExpertLoads)._latest
    num_tokens = sum(len(sequence.response_tokens) for sequence in batch.sequences)
    assert loads.sum(1).tolist() == [0.0, 2.0 * num_tokens, 2.0 * num_tokens]
    assert metrics["busiest_expert_share"] == pytest.approx(loads.max().item() / num_tokens)
    for layer in (1, 2):
        name = f"model.layers.{layer}.{BIAS}"
        assert torch.equal(before[name], base(name)), "it was rounded on its way"
        wanted = RATE * torch.sign(loads[layer].mean() - loads[layer]).float()
        assert torch.equal(after[name], before[name] + wanted)
    export_model(learner.model, base=folder, target=tmp_path / "next")
    assert open_weights(tmp_path / "next")(f"model.layers.1.{BIAS}").dtype is torch.float32
    assert '"dtype": "bfloat16"' in (tmp_path / "next" / "config.json").read_text()


def test_frozen_routers_and_biases_stay_while_all_else_is_trained(folder: Path):
    learner = make_learner(folder, trainer={"router": {"frozen": True}, "learning_rate": 1e-2})
    before = copy_weights(learner.model)
    learner.step(random_batch(0))
    same = {name for name, tensor in copy_weights(learner.model).items() if torch.equal(tensor, before[name])}
    # An expert that got no token has no gradient.
    assert {name for name in same if ".experts." not in name} == {name for name in before if ".gate." in name}
    assert len(same) < len(before) / 2


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_frozen_routers_are_published_as_they_were_loaded(folder: Path, tmp_path: Path, lora: dict | None):
    learner = make_learner(
        folder, model={"lora": lora}, trainer={"router": {"frozen": True}, "learning_rate": 1e-2}
    )
    for step in range(2):
        learner.step(random_batch(step))
    of_routers = {name for name in copy_weights(learner.model) if ".gate." in name}
    assert of_routers <= {each.name for each in exported_tensors(learner.model) if each.is_fixed}
    export_model(learner.model, base=folder, target=tmp_path / "next")
    published, base = open_weights(tmp_path / "next"), open_weights(folder)
    assert all(torch.equal(published(name), base(name)) for name in of_routers) and len(of_routers) == 4
    name = "model.layers.1.self_attn.q_proj.weight"
    assert not torch.equal(published(name), base(name))


def test_frozen_routers_are_those_of_reference_and_past_versions(folder: Path):
    learner = make_learner(
        folder,
        trainer={"router": {"frozen": True}, "learning_rate": 1e-2, "splits_staleness": True},
        algorithm={"kl": {"coefficient": 0.1, "refresh_steps": 1}},
    )
    base = copy_weights(learner.model)
    for step in range(3):
        metrics = learner.step(random_batch(step))
    assert metrics["staleness_unknown_share"] < 1.0, "no past version was loaded"
    assert learner.part(Reference) is not None and learner.part(PastVersions) is not None
    for model in (learner.part(Reference).held.model, learner.part(PastVersions).model):
        found = copy_weights(model)
        same = {name for name in base if torch.equal(found[name], base[name])}
        assert {name for name in base if ".gate." in name} <= same
        assert "model.layers.1.self_attn.q_proj.weight" not in same
