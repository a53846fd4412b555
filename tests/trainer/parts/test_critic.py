"""PPO's critic next to a real policy: its gradient, its steps, its checkpoints, and what it leaves alone."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from fakes.columns import COLUMNS
from fakes.learners import copy_weights, is_same, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.sequences import with_credits, with_turns
from families.known import write_tiny

from asyncrl.algorithms.batch_advantages import mask_cut_off
from asyncrl.algorithms.values import end_rewards, generalised_advantages, length_adaptive_lambda
from asyncrl.journal.packing import unpack_logprobs
from asyncrl.model.memory import rank_memory
from asyncrl.records import CREDITS, Batch
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.checkpoints.checkpoint_files import CheckpointError
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.parts.controls import EntropyTarget
from asyncrl.trainer.parts.critic import Critic
from asyncrl.trainer.step.learner import Learner

TRAINER = {"learning_rate": 1e-2, "adam_epsilon": 1e-2, "warmup_steps": 2}
GAE = {"advantage": {"name": "gae", "gae_lambda": 0.9, "gamma": 0.98}}
RAW = {"advantage": GAE["advantage"] | {"is_whitened": False}}


def gae(**numbers: object) -> dict[str, object]:
    return {"advantage": {**GAE["advantage"], **numbers}}


ATTENTION = {
    "Qwen3": {"linear_qkv", "linear_proj"},
    "DeepseekV3": {
        "linear_q_down_proj",
        "linear_q_up_proj",
        "linear_kv_down_proj",
        "linear_kv_up_proj",
        "linear_proj",
    },
    "Qwen3Next": {"linear_qkv", "linear_proj", "in_proj_ba", "out_proj"},
}
"""Matrices of softmax, latent and linear attention."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=True)


def critic_learner(folder: Path, **sections: dict) -> Learner:
    return make_learner(folder, **({"trainer": TRAINER, "algorithm": GAE} | sections))


def train(learner: Learner, first: int, last: int, *, has_turns: bool = False) -> list[dict[str, float]]:
    batches = [random_batch(step) for step in range(first, last)]
    return [learner.step(with_turns(batch) if has_turns else batch) for batch in batches]


def micro_batches(learner: Learner, batch: Batch) -> list:
    budget = learner.section.tokens_per_micro_batch
    return rank_micro_batches(batch, budget_tokens=budget, rank=0, num_ranks=1, columns=COLUMNS)


def draw_head(critic: Critic, *, scale: float = 1.0) -> None:
    """So that no value is 0, as all are at the start."""
    with torch.no_grad():
        weight = critic.model[0].output_layer.weight
        weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(scale)


def recursion(values: list[float], reward: float, penalties: list[float] | None = None) -> list[float]:
    """The advantages of one sequence under GAE's keys, token by token from its end."""
    found, later, following = [], 0.0, 0.0
    rewards = [0.0] * (len(values) - 1) + [reward]
    for i in reversed(range(len(values))):
        earned = rewards[i] - (penalties[i] if penalties else 0.0)
        later = earned + 0.98 * following - values[i] + 0.98 * 0.9 * later
        following = values[i]
        found.insert(0, later)
    return found


def test_the_gradient_of_the_value_loss_is_that_of_transformers(folder: Path):
    learner, batch = critic_learner(folder), random_batch(1)
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(1, 32, generator=generator)
    with torch.no_grad():
        learner.part(Critic).model[0].output_layer.weight.copy_(head)
    learner.part(Critic).accumulate(micro_batches(learner, batch), 1.0)
    got = dict(export_weights(learner.part(Critic).model, lambda parameter: parameter.main_grad.clone()))
    model, head = reference_model(folder).model, head.requires_grad_()
    total, num_tokens = torch.zeros(()), 0
    for sequence in batch.sequences:
        hidden = model(torch.tensor([sequence.prompt_tokens + sequence.response_tokens])).last_hidden_state[0]
        values = (hidden[len(sequence.prompt_tokens) - 1 : -1] @ head.T).squeeze(1)
        advantages = torch.tensor(recursion(values.tolist(), sequence.advantage))
        total = total + (values - (advantages + values.detach())).square().sum() / 2
        num_tokens += len(values)
    (total / num_tokens).backward()
    wanted = {f"model.{name}": p.grad for name, p in model.named_parameters()} | {"lm_head.weight": head.grad}
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (got[name] - gradient).abs().max() / gradient.abs().max() < 1e-4, name


def test_a_response_that_was_cut_off_and_masked_trains_no_value(folder: Path):
    learner, batch = critic_learner(folder), random_batch(1)
    cut_off, *rest = batch.sequences
    sequences = [dataclasses.replace(cut_off, finish="length"), *rest]
    masked = mask_cut_off(dataclasses.replace(batch, sequences=sequences))
    _, total = learner.part(Critic).accumulate(micro_batches(learner, masked), 1.0)
    got = dict(export_weights(learner.part(Critic).model, lambda parameter: parameter.main_grad.clone()))
    _, alone = learner.part(Critic).accumulate(
        micro_batches(learner, dataclasses.replace(batch, sequences=rest)), 1.0
    )
    wanted = dict(export_weights(learner.part(Critic).model, lambda parameter: parameter.main_grad.clone()))
    assert total.tolist() == pytest.approx(alone.tolist(), rel=1e-5)
    assert torch.allclose(got["lm_head.weight"], wanted["lm_head.weight"], rtol=1e-4, atol=1e-6)


def of_the_policy(learner: Learner, batch: Batch) -> Batch:
    """The batch as sampled by the learner's own policy."""
    (micro,) = micro_batches(learner, batch)
    (found,) = learner.passes.logprobs(learner.parallel_chunks, [micro], batch.temperature)
    own = {name: found[micro.sequence_ids == i].tolist() for i, name in enumerate(micro.names)}
    sequences = [dataclasses.replace(s, behavior_logprobs=own[s.sequence_id]) for s in batch.sequences]
    return dataclasses.replace(batch, sequences=sequences)


def test_v_trace_has_the_step_of_gae_where_the_policy_itself_has_sampled(folder: Path):
    algorithm = {"advantage": {"name": "gae", "gae_lambda": 1.0, "gamma": 0.98}}
    heads = {}
    for name, has_sampled in (("gae", True), ("v_trace", True), ("v_trace", False)):
        learner = critic_learner(folder, algorithm=algorithm, critic={"targets": name})
        draw_head(learner.part(Critic))
        batch = random_batch(1)
        learner.step(of_the_policy(learner, batch) if has_sampled else batch)
        heads[name, has_sampled] = copy_weights(learner.part(Critic).model)["lm_head.weight"]
    wanted = heads["gae", True]
    assert torch.allclose(heads["v_trace", True], wanted, atol=1e-6, rtol=0)
    assert (heads["v_trace", False] - wanted).abs().max() > 5e-5


def test_the_critic_has_a_lambda_of_its_own_and_the_policy_one_per_length(folder: Path):
    learner = critic_learner(
        folder, algorithm=gae(is_whitened=False, length_alpha=0.2), critic={"gae_lambda": 1.0}
    )
    draw_head(learner.part(Critic))
    (micro,) = micro_batches(learner, random_batch(1))
    (values,) = learner.part(Critic).values([micro], 1.0)
    found, targets = learner.part(Critic)._estimates(micro, values)
    keys = {"gamma": 0.98}
    rewards, ids = end_rewards(micro.advantages, micro.line_ids), micro.line_ids
    lambdas = length_adaptive_lambda(ids, 0.2)
    assert 0.0 in lambdas.tolist() and lambdas.max() > 0.4
    wanted = generalised_advantages(rewards, values, ids, gae_lambda=lambdas, **keys)
    assert torch.equal(found, wanted)
    wanted = generalised_advantages(rewards, values, ids, gae_lambda=1.0, **keys) + values
    assert torch.equal(targets, wanted)


def test_a_chain_of_branches_changes_the_policys_advantages_and_no_target(folder: Path):
    batch = random_batch(1)
    names = ["a", "a.1", "a.2", *(f"b{i}" for i in range(len(batch.sequences) - 3))]
    batch = dataclasses.replace(
        batch,
        sequences=[
            dataclasses.replace(sequence, sequence_id=name)
            for sequence, name in zip(batch.sequences, names, strict=True)
        ],
    )
    found = {}
    for branches in ("outcome", "chain"):
        learner = critic_learner(folder, algorithm=gae(is_whitened=False, branches=branches))
        (micro,) = micro_batches(learner, batch)
        found[branches] = learner.part(Critic)._estimates(micro, torch.zeros(len(micro.targets)))
    (local, targets), (chain, same) = found["outcome"], found["chain"]
    assert torch.equal(targets, same)
    sizes = dict(zip(names, (s.num_sampled() for s in batch.sequences), strict=True))
    later = {"a": sizes["a.1"] + sizes["a.2"], "a.1": sizes["a.2"]}
    for place, name in enumerate(micro.lines):
        is_own = micro.line_ids == place
        wanted = local[is_own] * (0.98 * 0.9) ** later.get(name, 0)
        assert torch.allclose(chain[is_own], wanted, rtol=1e-6)
    assert not torch.equal(local, chain)


def test_rewards_inside_a_response_are_taken_at_their_tokens_and_observed_tokens_take_no_time(folder: Path):
    learner = critic_learner(folder, algorithm=gae(is_whitened=False))
    draw_head(learner.part(Critic))
    batch = with_turns(random_batch(1))
    assert sum(CREDITS in sequence.columns for sequence in batch.sequences) > 2
    # Under gae an advantage that comes is a reward, of the whole trajectory.
    sequences = [dataclasses.replace(sequence, turn_advantages=[]) for sequence in batch.sequences]
    micro = micro_batches(learner, dataclasses.replace(batch, sequences=sequences))
    (values,) = learner.part(Critic).values(micro, 1.0)
    (found,) = learner.part(Critic).current_advantages(micro, 1.0)
    names = {sequence.sequence_id: sequence for sequence in batch.sequences}
    for i, name in enumerate(micro[0].names):
        own = micro[0].sequence_ids == i
        sequence, penalties = names[name], [0.0] * int(own.sum())
        if CREDITS in sequence.columns:
            penalties = [-reward for reward in unpack_logprobs(sequence.columns[CREDITS])]
        wanted = recursion(values[own].tolist(), sequence.advantage, penalties)
        assert found[own].tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_reward_at_the_last_token_is_one_of_the_outcome(folder: Path):
    """The return is their sum: where the outcome has it or a credit does, values and weights are the same."""
    batch = random_batch(1)
    whole = [dataclasses.replace(s, advantage=0.75) for s in batch.sequences]
    split = [
        with_credits(dataclasses.replace(s, advantage=0.5), (s.num_sampled() - 1, 0.25))
        for s in batch.sequences
    ]
    learners = [critic_learner(folder, trainer=TRAINER) for _ in range(2)]
    metrics = [
        learner.step(dataclasses.replace(batch, sequences=sequences))
        for learner, sequences in zip(learners, (whole, split), strict=True)
    ]
    assert metrics[0] == metrics[1]
    assert is_same(*(copy_weights(learner.part(Critic).model) for learner in learners))


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_all_mini_batches(folder: Path):
    learner = critic_learner(folder, trainer=TRAINER | {"optimizer_steps_per_batch": 2})
    batch = random_batch(1)
    halves = [
        micro_batches(learner, dataclasses.replace(batch, sequences=batch.sequences[part]))
        for part in (slice(0, 6), slice(6, 12))
    ]
    parts, _ = learner.part(Critic).step(halves, 1.0, version=0)
    found = torch.cat([micro.advantages for part in parts for micro in part])
    assert found.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert found.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)


def test_kl_in_the_reward_reaches_the_advantages_once(folder: Path):
    """The policy is the reference but for a shift of its norm: KL per token is what transformers says."""
    algorithm = {"kl": {"coefficient": 0.5, "place": "reward", "estimator": "k1"}}
    learner = critic_learner(folder, algorithm=gae(is_whitened=False) | algorithm)
    with torch.no_grad():
        learner.model[0].decoder.final_layernorm.weight.mul_(1.1)
    learner.weights_changed()
    batch = random_batch(1)
    reference, policy = reference_model(folder), reference_model(folder)
    with torch.no_grad():
        policy.model.norm.weight.mul_(1.1)
        wanted = []
        for sequence in batch.sequences:
            kl = reference_logprobs(policy, sequence, 1.0) - reference_logprobs(reference, sequence, 1.0)
            wanted += recursion([0.0] * len(kl), sequence.advantage, (0.5 * kl).tolist())
    seen = []
    learner.objective._loss, loss = (
        (lambda inputs: seen.append(inputs.advantages) or loss(inputs)),
        (learner.objective._loss),
    )
    learner.step(batch)
    assert sorted(torch.cat(seen).tolist()) == pytest.approx(sorted(wanted), abs=1e-4)


def test_a_rejection_is_the_policys_alone(folder: Path):
    # Behavior log-probs of -4 to -2 under a mean of about -3.7: the range leaves some tokens out.
    found = {}
    for rejection in ([], ["token_range"]):
        learner = critic_learner(folder, algorithm=GAE | {"rejection": rejection}, trainer=TRAINER)
        metrics = learner.step(random_batch(1))
        found[bool(rejection)] = [metrics[name] for name in ("value_loss", "value_mean", "critic_grad_norm")]
        assert (metrics["masked_share"] > 0) == bool(rejection)
    assert found[True] == found[False]


def test_tokens_that_are_too_stale_are_out_of_the_value_loss_and_the_whitening(folder: Path):
    batch = random_batch(3)
    first, *rest = batch.sequences
    # At step 3 a token of version 0 has lag 3.
    stale = dataclasses.replace(first, token_versions=[0] * len(first.response_tokens))
    rest = [dataclasses.replace(s, token_versions=[3] * len(s.response_tokens)) for s in rest]
    found = {}
    for name, sequences in (("with", [stale, *rest]), ("without", rest)):
        learner = critic_learner(folder, trainer=TRAINER, rollout={"mask_staleness": 1})
        part = micro_batches(learner, dataclasses.replace(batch, sequences=sequences))
        (after,), metrics = learner.part(Critic).step([part], 1.0, version=0)
        fresh = torch.cat([micro.advantages[micro.lags == 0] for micro in after])
        found[name] = fresh.sort().values, metrics
    assert torch.allclose(found["with"][0], found["without"][0], atol=1e-5)
    assert found["with"][1] == pytest.approx(found["without"][1], rel=1e-4)


@pytest.mark.parametrize("has_turns", [False, True])
@pytest.mark.parametrize("steps_per_batch", [1, 2])
def test_packing_does_not_change_the_steps(folder: Path, steps_per_batch: int, has_turns: bool):
    trainer = TRAINER | {"optimizer_steps_per_batch": steps_per_batch}
    whole = critic_learner(folder, trainer=trainer)
    split = critic_learner(folder, trainer=trainer | {"tokens_per_micro_batch": 40})
    for left, right in zip(*(train(one, 0, 2, has_turns=has_turns) for one in (whole, split)), strict=True):
        for name in left.keys() - {"num_packed_tokens"}:
            assert left[name] == pytest.approx(right[name], rel=1e-4, abs=1e-5, nan_ok=True), name
    for one, other in ((whole.model, split.model), (whole.part(Critic).model, split.part(Critic).model)):
        left, right = copy_weights(one), copy_weights(other)
        assert max((left[name] - right[name]).abs().max().item() for name in left) < 1e-5


def test_a_critic_with_steps_of_its_own_leaves_the_policy_what_the_critic_before_them_says(folder: Path):
    """Four small steps of the critic against one: the policy's step is the same, the critic learns more."""
    critic = {"learning_rate": 1e-2}
    one, many = (
        critic_learner(folder, critic=critic | own, rollout={"groups_per_batch": 4})
        for own in ({}, {"optimizer_steps_per_batch": 4})
    )
    batch = random_batch(0)
    left, right = one.step(batch), many.step(batch)
    for name in ("grad_norm", "loss", "learning_rate", "num_tokens", "value_mean", "value_target_mean"):
        assert left[name] == pytest.approx(right[name], rel=1e-4, abs=1e-6), name
    policies = [copy_weights(learner.model) for learner in (one, many)]
    assert max((policies[0][n] - policies[1][n]).abs().max().item() for n in policies[0]) < 1e-5
    assert not is_same(copy_weights(one.part(Critic).model), copy_weights(many.part(Critic).model))
    repeated = [
        one.step(dataclasses.replace(batch, taken_version=1)),
        many.step(dataclasses.replace(batch, taken_version=1)),
    ]
    assert repeated[1]["value_loss"] < repeated[0]["value_loss"] < left["value_loss"]


def test_more_passes_train_towards_the_targets_of_before_the_batch(folder: Path):
    """With lambda 1 a return does not depend on the values: a second step of another learner has the same."""
    algorithm = {"advantage": GAE["advantage"] | {"gae_lambda": 1.0}}
    twice = critic_learner(folder, algorithm=algorithm, critic={"passes": 2, "learning_rate": 1e-2})
    once = critic_learner(folder, algorithm=algorithm, critic={"learning_rate": 1e-2, "value_clip": None})
    batch = random_batch(0)
    left, right = twice.step(batch), once.step(batch)
    for name in ("grad_norm", "loss", "value_mean", "value_target_mean", "explained_variance"):
        assert left[name] == pytest.approx(right[name], rel=1e-5, nan_ok=True), name
    once.part(Critic).step([micro_batches(once, batch)], 1.0, version=0)
    found, wanted = (copy_weights(each.part(Critic).model) for each in (twice, once))
    assert max((found[name] - wanted[name]).abs().max().item() for name in wanted) < 1e-6


def test_advantages_may_be_those_of_the_critic_that_the_batch_has_trained(folder: Path):
    learner = critic_learner(
        folder,
        algorithm=RAW,
        critic={"passes": 2, "advantages_from": "after", "learning_rate": 1e-1},
        trainer=TRAINER | {"warmup_steps": 0},
    )
    micro = micro_batches(learner, random_batch(1))
    critic = learner.part(Critic)
    before = critic.current_advantages(micro, 1.0)
    (found,), _ = critic.step([micro], 1.0, version=0)
    assert torch.equal(found[0].advantages, critic.current_advantages(micro, 1.0)[0])
    assert (found[0].advantages - before[0]).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["Qwen3", "DeepseekV3", "Qwen3Next"])
def test_frozen_attention_stays_as_it_was_and_all_else_learns(tmp_path: Path, family: str):
    write_tiny(tmp_path, f"{family}ForCausalLM")
    learner = critic_learner(tmp_path, critic={"frozen": "attention"})
    critic = learner.part(Critic)
    names = [(name, p) for chunk in critic.model for name, p in chunk.named_parameters()]
    frozen = {name for name, parameter in names if not parameter.requires_grad}
    matrices = {name.split(".")[-2] for name in frozen if "layernorm" not in name}
    assert matrices >= ATTENTION[family]
    draw_head(critic)
    before = {name: parameter.detach().clone() for name, parameter in names}
    train(learner, 0, 3)
    learned = {name for name, parameter in names if not torch.equal(parameter, before[name])}
    assert learned and not learned & frozen
    assert {name for name in before if "experts" not in name and "bias" not in name} <= learned | frozen


def test_the_critics_gradient_has_a_clip_of_its_own(folder: Path):
    """Adam's step hides the size of a gradient; its first moment does not."""
    moments = []
    for clip in (1e-3, 1e3):
        learner = critic_learner(folder, critic={"clip_grad_norm": clip})
        norm = train(learner, 0, 1)[0]["critic_grad_norm"]
        states = learner.part(Critic).optimizer.chained_optimizers[0].optimizer.state.values()
        total = sum(state["exp_avg"].square().sum().item() for state in states) ** 0.5
        moments.append(total / (0.1 * norm))
    assert moments == [pytest.approx(1e-3 / norm, rel=1e-2), pytest.approx(1.0, rel=1e-3)]


def test_bounded_values_begin_in_the_middle_and_stay_in_their_range(folder: Path):
    learner = critic_learner(folder, critic={"value_range": [-1.0, 3.0], "learning_rate": 1.0})
    assert train(learner, 0, 1)[0]["value_mean"] == pytest.approx(1.0)
    critic = learner.part(Critic)
    draw_head(critic, scale=100.0)
    (values,) = critic.values(micro_batches(learner, random_batch(1)), 1.0)
    assert -1.0 <= values.min() < -0.9 and 2.9 < values.max() <= 3.0
    with pytest.raises(ValueError, match=r"critic\.value_range is \[1, 1\], expected"):
        critic_learner(folder, critic={"value_range": [1.0, 1.0]})


def test_a_response_that_was_cut_off_may_be_expected_to_continue(folder: Path):
    learner = critic_learner(folder, algorithm=RAW, critic={"cut_off": "continued"})
    draw_head(learner.part(Critic))
    cut_off, *rest = random_batch(1).sequences
    batch = dataclasses.replace(
        random_batch(1), sequences=[dataclasses.replace(cut_off, finish="length"), *rest]
    )
    (micro,) = micro_batches(learner, batch)
    (values,) = learner.part(Critic).values([micro], 1.0)
    found, targets = learner.part(Critic)._estimates(micro, values)
    for i, name in enumerate(micro.names):
        own = micro.sequence_ids == i
        sequence = next(each for each in batch.sequences if each.sequence_id == name)
        expected = 0.98 * values[own][-1].item() if sequence is batch.sequences[0] else 0.0
        wanted = recursion(values[own].tolist(), sequence.advantage + expected)
        assert found[own].tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_warm_up_trains_the_critic_and_leaves_the_policy(folder: Path):
    learner = critic_learner(folder, critic={"warmup_steps": 2, "learning_rate": 1e-2})
    policy, values = copy_weights(learner.model), copy_weights(learner.part(Critic).model)
    first, second = train(learner, 0, 2)
    assert is_same(copy_weights(learner.model), policy)
    after = copy_weights(learner.part(Critic).model)
    assert not any(torch.equal(after[name], values[name]) for name in values)
    assert math.isnan(first["grad_norm"]) and first["learning_rate"] == 0.0
    assert first["value_mean"] == 0.0 and second["value_mean"] != 0.0
    assert first["num_tokens"] > 0 and first["entropy"] > 0
    third = learner.step(random_batch(2))
    assert not is_same(copy_weights(learner.model), policy)
    # The policy's own warm-up, of two steps here, begins when it does.
    assert third["learning_rate"] == pytest.approx(0.5e-2)
    assert third["critic_learning_rate"] == pytest.approx(1e-2)


def test_recorded_responses_teach_the_critic_alone_and_lower_its_first_loss(folder: Path, tmp_path: Path):
    """Those of an earlier run, through the steps of the warm-up; killed in between, to the last bit."""
    critic = {"warmup_steps": 8, "learning_rate": 1e-2, "warmup_run": str(tmp_path)}
    learner = critic_learner(folder, critic=critic)
    policy, recorded = copy_weights(learner.model), random_batch(1)

    def learn(learner: Learner, first: int, last: int) -> list[dict[str, float]]:
        versions = range(first, last)
        return [learner.step(dataclasses.replace(recorded, taken_version=version)) for version in versions]

    rows = learn(learner, 0, 4)
    checkpoints = Checkpoints(tmp_path / "checkpoints", num_kept=1)
    checkpoints.save(learner, 4)
    rows += learn(learner, 4, 8)
    assert is_same(copy_weights(learner.model), policy)
    # Nothing compares the tokens with a policy that has not sampled them.
    assert "mismatch_kl" not in rows[0] and math.isnan(rows[0]["loss"]) and rows[0]["num_tokens"] > 0
    killed = critic_learner(folder, critic=critic)
    checkpoints.load(killed, 4)
    assert [row["value_loss"] for row in learn(killed, 4, 8)] == [row["value_loss"] for row in rows[4:]]
    ((after,), (without,)) = learn(learner, 8, 9), learn(critic_learner(folder), 8, 9)
    assert after["value_loss"] < 0.7 * without["value_loss"] and after["grad_norm"] > 0


def test_the_critic_starts_as_the_model_that_critic_path_names(folder: Path, tmp_path: Path):
    other = write_model(tmp_path, tie_word_embeddings=True, seed=7)
    learner, plain = critic_learner(folder, critic={"path": str(other)}), critic_learner(folder)
    like_other = critic_learner(other)
    assert is_same(copy_weights(learner.part(Critic).model), copy_weights(like_other.part(Critic).model))
    assert not is_same(copy_weights(learner.part(Critic).model), copy_weights(plain.part(Critic).model))


def test_a_warm_up_of_the_critic_leaves_the_weight_of_the_entropy_bonus(folder: Path):
    # Every entropy is below the target, so that each step of the policy raises the weight.
    keys = {"entropy_bonus": {"target": 100.0, "coefficient": 0.03, "step": 0.01}}
    learner = critic_learner(folder, algorithm=GAE | keys, critic={"warmup_steps": 1})
    before = learner.part(EntropyTarget).entropy
    learner.step(random_batch(0))
    assert learner.part(EntropyTarget).entropy == before
    weights = [learner.step(random_batch(step))["entropy_coefficient"] for step in (1, 2)]
    assert weights == pytest.approx([0.03, 0.04])


def test_a_warm_up_in_optimizer_steps_ends_with_the_batch_of_the_last_of_them(folder: Path):
    trainer = TRAINER | {"schedule_unit": "optimizer_steps", "warmup_steps": 4}
    critic = {"warmup_steps": 3, "learning_rate": 1e-2, "optimizer_steps_per_batch": 2}
    learner = critic_learner(folder, trainer=trainer, critic=critic)
    policy = copy_weights(learner.model)
    first, second = train(learner, 0, 2)
    # Steps 1 and 2, then 3 and 4, of the critic.
    assert is_same(copy_weights(learner.model), policy)
    assert first["critic_learning_rate"] == pytest.approx(0.5e-2)
    assert second["critic_learning_rate"] == pytest.approx(1e-2)
    third = learner.step(random_batch(2))
    assert not is_same(copy_weights(learner.model), policy)
    # The policy's first step of four.
    assert third["learning_rate"] == pytest.approx(0.25e-2)


def test_a_critic_learns_which_prompts_are_rewarded(folder: Path):
    learner = critic_learner(folder, critic={"warmup_steps": 24, "learning_rate": 1e-2})
    batch = random_batch(1)
    # Each group's prompt is its own; the reward is known from the prompt alone.
    rewarded = [
        dataclasses.replace(sequence, advantage=float(i // 3 % 2))
        for i, sequence in enumerate(batch.sequences)
    ]
    rows = [
        learner.step(dataclasses.replace(batch, taken_version=step, sequences=rewarded)) for step in range(24)
    ]
    assert rows[-1]["explained_variance"] > 0.9 > 0.3 > rows[0]["explained_variance"]
    assert rows[-1]["value_loss"] < 0.1 * rows[0]["value_loss"]


def test_a_token_without_a_behavior_logprob_counts_for_neither_model(folder: Path):
    batch = random_batch(1)
    first = batch.sequences[0]
    behavior = [math.nan, *first.behavior_logprobs[1:]]
    spoilt = dataclasses.replace(first, behavior_logprobs=behavior)
    learner = critic_learner(folder)
    metrics = learner.step(dataclasses.replace(batch, sequences=[spoilt, *batch.sequences[1:]]))
    assert metrics["nonfinite_tokens"] == 1.0
    assert all(math.isfinite(metrics[name]) for name in ("value_loss", "critic_grad_norm", "grad_norm"))


def test_other_advantages_build_no_critic(folder: Path):
    learner = critic_learner(folder, algorithm={}, critic={})
    assert learner.part(Critic) is None
    assert not any("value" in name or "critic" in name for name in train(learner, 0, 1)[0])


@pytest.mark.parametrize(
    "sections",
    [
        {"critic": {"warmup_steps": 1}},
        {"critic": {"warmup_steps": 1}, "model": {"dtype": "bfloat16"}},
        {"critic": {"frozen": "attention"}},
    ],
    ids=["float32", "bfloat16", "frozen attention"],
)
def test_a_restored_critic_continues_bit_for_bit(folder: Path, tmp_path: Path, sections: dict):
    straight = critic_learner(folder, **sections)
    wanted = train(straight, 0, 5)
    first = critic_learner(folder, **sections)
    train(first, 0, 2)
    checkpoints = Checkpoints(tmp_path, num_kept=2)
    checkpoints.save(first, 2)
    again = critic_learner(folder, **sections)
    assert checkpoints.load_newest(again) == 2
    assert train(again, 2, 5) == wanted[2:]
    assert is_same(copy_weights(again.model), copy_weights(straight.model))
    assert is_same(copy_weights(again.part(Critic).model), copy_weights(straight.part(Critic).model))


def test_a_checkpoint_without_a_critic_is_refused(folder: Path, tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, num_kept=2)
    checkpoints.save(critic_learner(folder, algorithm={}), 1)
    with pytest.raises(CheckpointError, match=r"holds no critic, which algorithm\.advantage gae needs"):
        checkpoints.load_newest(critic_learner(folder))


def test_a_policy_continues_alone_from_a_checkpoint_with_a_critic(folder: Path, tmp_path: Path):
    learner = critic_learner(folder)
    train(learner, 0, 1)
    checkpoints = Checkpoints(tmp_path, num_kept=2)
    checkpoints.save(learner, 1)
    alone = critic_learner(folder, algorithm={})
    assert checkpoints.load_newest(alone) == 1
    assert is_same(copy_weights(alone.model), copy_weights(learner.model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_critic_is_as_large_as_planned(folder: Path, dtype: str):
    learner = critic_learner(folder, model={"dtype": dtype})
    train(learner, 0, 1)
    parameters = list(learner.part(Critic).model.parameters())
    optimizer = learner.part(Critic).optimizer
    inner = optimizer.chained_optimizers[0].optimizer
    moments = [value for state in inner.state.values() for value in state.values() if value.numel() > 1]
    masters = [p for group in optimizer.param_groups for p in group["params"]] if dtype == "bfloat16" else []
    sizes = [sum(t.nbytes for t in kind) for kind in (parameters, moments, masters)]
    gradients = sum(parameter.main_grad.nbytes for parameter in parameters)
    plan = rank_memory(learner.shape, dtype=dtype, tokens_per_micro_batch=1, has_critic=True)
    # All but the gradients is copied once more for checkpoints.
    assert (plan.critic, plan.critic_copy) == (gradients + sum(sizes), sum(sizes))
    without = rank_memory(learner.shape, dtype=dtype, tokens_per_micro_batch=1)
    assert without.critic == 0 and plan.total() - without.total() == plan.critic + plan.critic_copy


def test_a_batch_of_which_no_token_counts_moves_neither_policy_nor_critic(folder: Path):
    learner = critic_learner(
        folder, trainer=TRAINER | {"weight_decay": 0.1}, rollout={"max_staleness": 99, "mask_staleness": 8}
    )
    assert learner.part(Critic) is not None
    learner.step(random_batch(1))
    before = [copy_weights(model) for model in (learner.model, learner.part(Critic).model)]
    batch = random_batch(20)
    old = [dataclasses.replace(s, token_versions=[0] * len(s.token_versions)) for s in batch.sequences]
    metrics = learner.step(dataclasses.replace(batch, sequences=old))
    assert (metrics["optimizer_steps"], metrics["critic_learning_rate"]) == (0.0, 0.0)
    for weights, model in zip(before, (learner.model, learner.part(Critic).model), strict=True):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in copy_weights(model).items())
