"""One step against an independent computation: transformers, autograd and the formulas written out."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes.learners import copy_weights, gradient_of, is_same, make_learner, worst_difference
from fakes.models import random_batch, reference_logprobs, reference_model, write_model, write_tokenizer
from fakes.recipes import make_recipe
from fakes.sequences import sampled_positions, with_kept_sets, with_turns
from torch import Tensor

from asyncrl.algorithms.own_terms import check_terms
from asyncrl.errors import Diverged, InputError
from asyncrl.model.column_bytes import KEPT_SETS, split_kept_sets
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.network import logprobs, output_kernels
from asyncrl.trainer.packing.batch import mini_batches, rank_micro_batches
from asyncrl.trainer.packing.terms import unpack_kept_sets
from asyncrl.trainer.parts import reference as reference_module
from asyncrl.trainer.parts.reference import Reference, kl_penalties
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.objective import Objective


def reference_loss(model: torch.nn.Module, batch: Batch, recipe: Recipe) -> Tensor:
    """TIS x REINFORCE, which has PPO's gradient at one step, sequence by sequence."""
    total, num_tokens = torch.zeros(()), 0
    prompts: dict[tuple[int, ...], list[Tensor]] = {}
    for sequence in batch.sequences:
        current = reference_logprobs(model, sequence, batch.temperature)
        behavior = torch.tensor(sequence.behavior_logprobs)
        weight = (current.detach() - behavior).exp().clamp(max=recipe.algorithm.importance_weight.cap)
        losses = -weight * sequence.advantage * current
        prompts.setdefault(tuple(sequence.prompt_tokens), []).append(losses)
        total = total + losses.sum()
        num_tokens += len(current)
    if recipe.algorithm.reduction == "prompt_mean":
        return torch.stack([torch.cat(losses).mean() for losses in prompts.values()]).mean()
    if recipe.algorithm.reduction == "token_mean":
        return total / num_tokens
    return total / (len(batch.sequences) * recipe.rollout.max_new_tokens)


@pytest.mark.parametrize("reduction", ["token_mean", "dr_grpo_constant", "prompt_mean"])
@pytest.mark.parametrize("family", ["Qwen3", "Qwen2", "Llama"])
def test_the_gradient_of_the_whole_loss_is_that_of_transformers(family: str, reduction: str, tmp_path: Path):
    folder = write_model(tmp_path, family, tie_word_embeddings=family == "Qwen2")
    algorithm = {"reduction": reduction}
    batch = random_batch(1, temperature=0.8)
    _, got = gradient_of(make_learner(folder, algorithm=algorithm), batch)
    model = reference_model(folder)
    reference_loss(model, batch, make_recipe(folder, algorithm=algorithm)).backward()
    assert worst_difference(got, {n: p.grad for n, p in model.named_parameters()}) < 1e-5


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_gradient_is_that_of_transformers_where_products_are_added_to_megatrons_own(
    is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on a GPU: in chunks, over several micro-batches; a tied weight has the embedding's gradient, too."""
    monkeypatch.setattr(output_kernels, "ADDING", ("cpu",))
    monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 400)
    write_model(tmp_path, "Qwen2", tie_word_embeddings=is_tied)
    batch = random_batch(1, temperature=0.8)
    learner = make_learner(tmp_path, trainer={"tokens_per_micro_batch": 64})
    _, got = gradient_of(learner, batch)
    model = reference_model(tmp_path)
    reference_loss(model, batch, make_recipe(tmp_path)).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    assert worst_difference(got, wanted) < 1e-5
    assert learner.model[0]._output_weight().grad_added_to_main_grad


def test_the_gradient_of_turns_with_their_own_advantages_is_that_of_transformers(folder: Path):
    batch = with_turns(random_batch(1, temperature=0.8))
    assert sum(bool(sequence.turn_advantages) for sequence in batch.sequences) > 4
    _, got = gradient_of(make_learner(folder), batch)
    model, cap = reference_model(folder), make_recipe(folder).algorithm.importance_weight.cap
    total, num_tokens = torch.zeros(()), 0
    for sequence in batch.sequences:
        current = reference_logprobs(model, sequence, 0.8)[sampled_positions(sequence)]
        weight = (current.detach() - torch.tensor(sequence.behavior_logprobs)).exp().clamp(max=cap)
        first, rest = sequence.turn_advantages or [(0, 0.0), (len(current), sequence.advantage)]
        advantages = torch.tensor([first[1]] * first[0] + [rest[1]] * rest[0])
        total = total - (weight * advantages * current).sum()
        num_tokens += len(current)
    (total / num_tokens).backward()
    assert worst_difference(got, {n: p.grad for n, p in model.named_parameters()}) < 1e-5


@pytest.mark.parametrize("advantage", ["grpo", "reinforce_pp"])
def test_turns_of_one_advantage_are_a_response_of_it_to_the_last_digit(folder: Path, advantage: str):
    turns = with_turns(random_batch(1))
    equal = [
        dataclasses.replace(s, turn_advantages=[(count, s.advantage) for count, _ in s.turn_advantages])
        for s in turns.sequences
    ]
    plain = [dataclasses.replace(s, turn_advantages=[], columns={}) for s in turns.sequences]
    learners = [make_learner(folder, algorithm={"advantage": advantage}) for _ in range(2)]
    metrics = [
        learner.step(dataclasses.replace(turns, sequences=sequences))
        for learner, sequences in zip(learners, (equal, plain), strict=True)
    ]
    assert repr(metrics[0]) == repr(metrics[1])
    assert is_same(*(copy_weights(learner.model) for learner in learners))


class Masked(torch.nn.Module):
    """transformers' model with logits of minus infinity at some ids."""

    def __init__(self, model: torch.nn.Module, ids: list[int]) -> None:
        super().__init__()
        self.model, self.ids = model, torch.tensor(ids)

    def forward(self, tokens: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(tokens).logits.index_fill(-1, self.ids, -math.inf))


@pytest.mark.parametrize("is_tied", [False, True])
def test_tokens_that_are_never_sampled_are_no_part_of_loss_gradient_and_reference(
    is_tied: bool, tmp_path: Path
):
    # Batches have the tokens 0 to 39.
    folder = write_model(tmp_path, vocab_size=44, tie_word_embeddings=is_tied)
    write_tokenizer(folder, range(40), pad=40)
    learner = make_learner(
        folder, algorithm={"kl": {"coefficient": 0.1}, "entropy_bonus": {"coefficient": 0.1}}
    )
    assert learner.unsampled.ids == (40, 41, 42, 43)
    batch = random_batch(1, temperature=0.8)
    model = Masked(reference_model(folder), [40, 41, 42, 43])
    (micro,) = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    wanted = torch.cat([reference_logprobs(model, each, 0.8) for each in batch.sequences])
    assert learner.part(Reference) is not None
    for chunks in (learner.parallel_chunks, learner.part(Reference).held.chunks):
        (found,) = learner.passes.logprobs(chunks, [micro], 0.8)
        assert sorted(found.tolist()) == pytest.approx(sorted(wanted.tolist()), abs=1e-5)
    plain = make_learner(folder)
    _, got = gradient_of(plain, batch)
    reference_loss(model, batch, make_recipe(folder)).backward()
    assert worst_difference(got, {n: p.grad for n, p in model.model.named_parameters()}) < 1e-5
    if not is_tied:
        assert got["lm_head.weight"][40:].eq(0).all()


def kept_ids(sequence: ScoredSequence) -> list[list[int]]:
    """The kept set of each token, the token itself included."""
    found = []
    for token, packed in zip(
        sequence.sampled_tokens(), split_kept_sets(sequence.columns[KEPT_SETS]), strict=True
    ):
        kept = unpack_kept_sets([packed], np.array([token]))
        found.append(kept.tokens.tolist())
    return found


def test_policy_terms_are_over_the_kept_tokens_and_kl_and_entropy_over_all(folder: Path):
    algorithm = {
        "kl": {"coefficient": 0.3, "estimator": "k2"},
        "entropy_bonus": {"coefficient": 0.2},
        "surrogate": "reinforce",
    }
    learner = make_learner(folder, algorithm=algorithm)
    batch = with_kept_sets(random_batch(1, temperature=0.8))
    model = reference_model(folder)
    reference = reference_model(folder)
    with torch.no_grad():
        # The reference is the base model; the policy is another.
        for parameter in learner.model.parameters():
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.load_state_dict(copy_weights(learner.model))
    learner.weights_changed()
    total, num_tokens = torch.zeros(()), 0
    for sequence in batch.sequences:
        tokens = torch.tensor([sequence.prompt_tokens + sequence.response_tokens])
        first = len(sequence.prompt_tokens) - 1
        logs, frozen = (
            torch.log_softmax(each(tokens).logits[0, first:-1].float() / 0.8, -1)
            for each in (model, reference)
        )
        places = torch.arange(len(logs)), torch.tensor(sequence.response_tokens)
        masses = torch.stack(
            [row[ids].logsumexp(0) for row, ids in zip(logs, kept_ids(sequence), strict=True)]
        )
        current = logs[places] - masses
        weight = (current.detach() - torch.tensor(sequence.behavior_logprobs)).exp()
        weight = weight.clamp(max=learner.objective.algorithm.importance_weight.cap)
        kl = (logs[places] - frozen[places].detach()).square() / 2
        entropy = -(logs.exp() * logs).sum(-1)
        total = total + (-weight * sequence.advantage * current + 0.3 * kl - 0.2 * entropy).sum()
        num_tokens += len(current)
    (total / num_tokens).backward()
    metrics, got = gradient_of(learner, batch)
    assert metrics["loss"] == pytest.approx((total / num_tokens).item(), abs=1e-5)
    assert worst_difference(got, {n: p.grad for n, p in model.named_parameters()}) < 1e-4


def test_kept_sets_where_the_recipe_has_none_and_their_absence_where_it_has_are_refused(folder: Path):
    batch = random_batch(0)
    name = batch.sequences[0].sequence_id
    with pytest.raises(InputError, match=f"response {name}, expected 0: rollout.top_k is not set"):
        make_learner(folder).step(with_kept_sets(batch))
    truncated = make_learner(folder, rollout={"top_p": 0.9, "top_k": 20})
    with pytest.raises(InputError, match=f"Step 1 has 0 kept sets .* response {name}.*rollout.top_k is set"):
        truncated.step(batch)
    assert truncated.step(with_kept_sets(batch))["nonfinite_tokens"] == 0


def test_kl_in_the_reward_of_kept_tokens_is_that_over_all(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A policy that is the reference has none, whatever servers kept."""
    seen: list[Tensor] = []
    monkeypatch.setattr(
        reference_module,
        "kl_penalties",
        lambda *arguments, **options: seen.append(kl_penalties(*arguments, **options)) or seen[-1],
    )
    algorithm = {"advantage": "reinforce_pp", "kl": {"coefficient": 0.1, "place": "reward"}}
    learner = make_learner(folder, algorithm=algorithm, rollout={"top_k": 20})
    learner.step(with_kept_sets(random_batch(1)))
    assert seen and max(each.abs().max().item() for each in seen) < 1e-9


def test_a_response_with_a_token_that_is_never_sampled_is_refused(tmp_path: Path):
    folder = write_tokenizer(write_model(tmp_path), range(39), pad=39)
    batch = random_batch(0)
    batch.sequences[3].response_tokens[0] = 39
    message = re.escape(
        f"Step 1 has the token 39 (<pad>) in response {batch.sequences[3].sequence_id}, but it is never"
    )
    with pytest.raises(InputError, match=message):
        make_learner(folder).step(batch)


@pytest.mark.parametrize("change", [None, with_turns, with_kept_sets])
@pytest.mark.parametrize("reduction", ["token_mean", "dr_grpo_constant"])
def test_splitting_into_micro_batches_changes_nothing(
    folder: Path, reduction: str, change: Callable[[Batch], Batch] | None
):
    batch = random_batch(2, num_groups=6, group_size=4)
    batch = batch if change is None else change(batch)
    whole, split = (
        make_learner(folder, algorithm={"reduction": reduction}, trainer={"tokens_per_micro_batch": budget})
        for budget in (8192, 30)
    )
    assert len(rank_micro_batches(batch, budget_tokens=30, rank=0, num_ranks=1)) > 4
    metrics, wanted = gradient_of(whole, batch)
    split_metrics, got = gradient_of(split, batch)
    assert worst_difference(got, wanted) < 1e-5
    # Only the number of packed tokens may differ: a bundle cut in two repeats its prompt.
    for name in metrics.keys() - {"num_packed_tokens"}:
        assert split_metrics[name] == pytest.approx(metrics[name], abs=1e-5, nan_ok=True), name


def test_a_step_is_adam_with_clipping_and_the_first_of_a_warm_up_is_not_lost(folder: Path):
    trainer = {"learning_rate": 1e-3, "warmup_steps": 4, "clip_grad_norm": 0.1, "weight_decay": 0.1}
    learner = make_learner(folder, trainer=trainer)
    model = reference_model(folder)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    for step, rate in enumerate((0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3)):
        batch = random_batch(step)
        metrics = learner.step(batch)
        reference_loss(model, batch, make_recipe(folder, trainer=trainer)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        adam.zero_grad()
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    # Adam divides by the gradient's own size, so rounding of a tiny one shows in full: compare to a step.
    got = copy_weights(learner.model)
    assert max((got[n] - p).abs().max().item() for n, p in model.named_parameters()) < 1e-4


@pytest.mark.parametrize(("num_silent", "optimizer_steps"), [(2, 1), (4, 1), (2, 2)])
def test_trajectories_without_an_advantage_count_as_before_but_need_no_backward_pass(
    folder: Path, num_silent: int, optimizer_steps: int
):
    recipe = {"optimizer_steps_per_batch": optimizer_steps, "tokens_per_micro_batch": 30}
    brief, whole = (make_learner(folder, trainer=recipe) for _ in range(2))
    whole.objective.teaches = lambda sequence: True
    for step in range(3):
        batch = random_batch(step, num_silent=num_silent)
        got, wanted = brief.step(batch), whole.step(batch)
        for name in wanted.keys() - {"num_packed_tokens"}:
            assert got[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-6, nan_ok=True), name
        noted, expected = (learner.sent()["trained_tokens"] for learner in (brief, whole))
        assert [each.trajectory_id for each in noted] == [each.trajectory_id for each in expected]
        assert [each.entropies for each in noted] == [each.entropies for each in expected]
        spent, full = (learner.passes.utilisation(1.0)["model_flops"] for learner in (brief, whole))
        # Of all four groups: a third, and a pack of one token.
        assert spent < 0.9 * full if num_silent < 4 else spent == pytest.approx(full / 3, rel=0.05)
    trained, wanted = copy_weights(brief.model), copy_weights(whole.model)
    assert max((trained[n] - wanted[n]).abs().max().item() for n in wanted) < 1e-5


def test_a_learning_rate_by_effective_samples_trains_as_that_rate_does(folder: Path):
    """VCPO: sqrt(ESS / N) of each optimizer step's own sequences."""
    batch = random_batch(2, num_groups=6, group_size=4)
    trainer = {"learning_rate": 1e-3, "warmup_steps": 8}
    scaled = make_learner(folder, trainer=trainer | {"learning_rate_scaling": "ess"})
    metrics = scaled.step(batch)
    factor = metrics["learning_rate_scale"]
    assert 0.0 < factor < 0.9 and factor == math.sqrt(metrics["sequence_effective_share"])
    assert metrics["learning_rate"] == factor * scaled.schedule.rate(2)
    plain = make_learner(folder, trainer=trainer | {"learning_rate": 1e-3 * factor})
    assert "learning_rate_scale" not in plain.step(batch)
    left, right = (copy_weights(learner.model) for learner in (scaled, plain))
    assert max((left[name] - right[name]).abs().max().item() for name in left) < 1e-8
    # The second of two optimizer steps has a factor of its own.
    twice = make_learner(
        folder, trainer=trainer | {"learning_rate_scaling": "ess", "optimizer_steps_per_batch": 2}
    )
    part = mini_batches(batch, 2, seed=twice.seed)[1]
    alone = make_learner(folder, trainer=trainer | {"learning_rate_scaling": "ess"})
    assert twice.step(batch)["learning_rate_scale"] == pytest.approx(alone.step(part)["learning_rate_scale"])


def test_weight_decay_leaves_norms_and_biases_alone(tmp_path: Path):
    folder = write_model(tmp_path, "Qwen2")
    learner = make_learner(folder, trainer={"weight_decay": 0.5, "learning_rate": 0.1})
    batch = random_batch(0)
    still = [dataclasses.replace(sequence, advantage=0.0) for sequence in batch.sequences]
    before = copy_weights(learner.model)
    learner.step(Batch(0, 1.0, still))
    for name, tensor in copy_weights(learner.model).items():
        decayed = before[name] if tensor.ndim == 1 else before[name] * (1 - 0.1 * 0.5)
        assert torch.allclose(tensor, decayed, rtol=1e-5), name


def test_a_log_prob_that_is_no_number_takes_its_token_out_and_is_counted(folder: Path):
    batch = random_batch(3)
    broken = list(batch.sequences)
    first = broken[0]
    size = len(first.response_tokens)
    broken[0] = dataclasses.replace(first, behavior_logprobs=[math.nan, -math.inf] * size)
    broken[0] = dataclasses.replace(broken[0], behavior_logprobs=broken[0].behavior_logprobs[:size])
    metrics, got = gradient_of(make_learner(folder), Batch(3, 1.0, broken))
    rest, wanted = gradient_of(make_learner(folder), Batch(3, 1.0, batch.sequences[1:]))
    assert worst_difference(got, wanted) < 1e-5
    assert metrics["nonfinite_tokens"] == size
    assert (metrics["loss"], metrics["num_tokens"]) == pytest.approx((rest["loss"], rest["num_tokens"]))


def without_logprobs(sequence: ScoredSequence) -> ScoredSequence:
    return dataclasses.replace(sequence, behavior_logprobs=[math.nan] * len(sequence.response_tokens))


def cut_off(sequence: ScoredSequence) -> ScoredSequence:
    return dataclasses.replace(sequence, finish="length")


def empty(sequence: ScoredSequence) -> ScoredSequence:
    return ScoredSequence(sequence.sequence_id, [1, 2], [], [], [], [], 1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "algorithm", "masked_share"),
    [
        (without_logprobs, {}, 0.0),
        (cut_off, {"masks_cut_off": True}, 1.0),
        (empty, {"reduction": "sequence_mean"}, math.nan),
    ],
)
def test_a_batch_without_any_usable_token_moves_no_weight(
    folder: Path, change: Callable[[ScoredSequence], ScoredSequence], algorithm: dict, masked_share: float
):
    learner, batch = make_learner(folder, algorithm=algorithm), random_batch(3)
    before = copy_weights(learner.model)
    metrics = learner.step(dataclasses.replace(batch, sequences=list(map(change, batch.sequences))))
    assert (metrics["num_tokens"], metrics["grad_norm"], metrics["loss"]) == (0.0, 0.0, 0.0)
    assert metrics["masked_cut_off_share"] == pytest.approx(masked_share, nan_ok=True)
    assert is_same(copy_weights(learner.model), before)


def test_a_denominator_beyond_int32_divides_the_gradient(folder: Path):
    # 16,384 sequences x 131,072 tokens, of which twelve sequences are here.
    batch = random_batch(3)
    longest = 16_384 * 131_072 // len(batch.sequences) + 1
    learners = [make_learner(folder, algorithm={"reduction": "dr_grpo_constant"}) for _ in range(2)]
    for learner, tokens in zip(learners, (longest, 1), strict=True):
        learner.objective = Objective(learner.objective.algorithm, max_new_tokens=tokens)
    (metrics, got), (small, wanted) = (gradient_of(learner, batch) for learner in learners)
    assert longest * len(batch.sequences) > 2**31
    assert worst_difference({name: tensor * longest for name, tensor in got.items()}, wanted) < 1e-5
    assert metrics["loss"] * longest == pytest.approx(small["loss"], rel=1e-5)


def without_tokens(batch: Batch, *, sequences: int) -> Batch:
    """The batch with the first of its sequences sampled long ago."""
    stale = [
        dataclasses.replace(s, token_versions=[0] * len(s.token_versions)) if i < sequences else s
        for i, s in enumerate(batch.sequences)
    ]
    return dataclasses.replace(batch, sequences=stale)


def stateful_learner(folder: Path, **trainer: object) -> Learner:
    """After a step whose momentum would move the weights on, weight decay likewise; in a warm-up."""
    settings = {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 8, **trainer}
    learner = make_learner(
        folder, trainer=settings, rollout={"max_staleness": 99, "mask_staleness": 8}, algorithm={}
    )
    learner.step(random_batch(1))
    return learner


def test_a_step_that_no_token_survives_takes_no_optimizer_step(folder: Path):
    learner = stateful_learner(folder)
    before = copy_weights(learner.model)
    batch = random_batch(20)
    metrics = learner.step(without_tokens(batch, sequences=len(batch.sequences)))
    assert (metrics["surviving_tokens"], metrics["left_out_share"]) == (0.0, 1.0)
    assert (metrics["optimizer_steps"], metrics["grad_norm"], metrics["learning_rate"]) == (0.0, 0.0, 0.0)
    assert is_same(copy_weights(learner.model), before)
    # What comes next is as if that step had not been: momentum stood still, too. The learning rate is a
    # function of the step's number alone.
    other = stateful_learner(folder)
    after, wanted = learner.step(random_batch(5)), other.step(random_batch(5))
    assert after["learning_rate"] == wanted["learning_rate"] == pytest.approx(0.75e-3)
    assert is_same(copy_weights(learner.model), copy_weights(other.model))


def test_a_mini_batch_that_no_token_survives_takes_no_optimizer_step(folder: Path):
    learner = stateful_learner(folder, optimizer_steps_per_batch=2)
    batch = random_batch(20)
    halves = mini_batches(batch, 2, seed=learner.seed)
    lost = {sequence.sequence_id for sequence in halves[1].sequences}
    ordered = sorted(batch.sequences, key=lambda s: s.sequence_id not in lost)
    metrics = learner.step(without_tokens(dataclasses.replace(batch, sequences=ordered), sequences=len(lost)))
    assert metrics["optimizer_steps"] == 1.0 and metrics["learning_rate"] == pytest.approx(1e-3)
    assert 0.0 < metrics["left_out_share"] < 1.0


def test_rejected_tokens_count_as_left_out(folder: Path):
    algorithm = {"rejection": ["token_range"], "mask_low": 0.999, "mask_high": 1.001}
    learner = make_learner(folder, algorithm=algorithm)
    before = copy_weights(learner.model)
    batch = random_batch(3)
    far = [
        dataclasses.replace(s, behavior_logprobs=[-90.0] * len(s.response_tokens)) for s in batch.sequences
    ]
    metrics = learner.step(dataclasses.replace(batch, sequences=far))
    assert metrics["num_tokens"] > 0
    assert (metrics["masked_share"], metrics["left_out_share"], metrics["optimizer_steps"]) == (1.0, 1.0, 0.0)
    assert is_same(copy_weights(learner.model), before)


OWN = """
import torch

def is_odd(inputs):
    # Not what the examples hold.
    return (inputs.behavior < -500) & inputs.mask

def weight(inputs, algorithm):
    return torch.where(is_odd(inputs), {bad}, torch.ones_like(inputs.proximal))

def surrogate(inputs, algorithm):
    return -inputs.advantages * torch.where(is_odd(inputs), {bad}, inputs.current)

def steep(inputs, algorithm):
    odd = is_odd(inputs)
    roots = (inputs.current - inputs.current.detach())[odd].sqrt()
    return (-inputs.advantages * inputs.current).masked_scatter(odd, roots)

def short(inputs, algorithm):
    return torch.ones(3) if is_odd(inputs).any() else torch.ones_like(inputs.proximal)
"""


@pytest.mark.parametrize(
    ("key", "name", "bad", "said"),
    [
        ("importance_weight", "weight", "float('nan')", r"weight gave nan at 1 token\(s\)"),
        ("importance_weight", "weight", "float('inf')", r"weight gave inf at 1 token\(s\)"),
        ("importance_weight", "weight", "-1.0", r"weight gave -1\.0 at 1 token\(s\)"),
        ("surrogate", "surrogate", "float('nan')", r"surrogate gave nan at 1 token\(s\)"),
        ("surrogate", "steep", "0", r"steep has a loss with the gradient (nan|inf) at 1 token\(s\)"),
    ],
)
def test_an_own_term_that_gives_no_number_is_named_with_its_trajectory(
    tmp_path: Path, folder: Path, key: str, name: str, bad: str, said: str
):
    (tmp_path / "own.py").write_text(OWN.format(bad=bad))
    algorithm = {"importance_weight": "none", key: f"{tmp_path}/own.py:{name}"}
    check_terms(make_recipe(folder, algorithm=algorithm).algorithm)
    learner = make_learner(folder, algorithm=algorithm)
    before = copy_weights(learner.model)
    batch = random_batch(3)
    odd = batch.sequences[4]
    changed = dataclasses.replace(odd, behavior_logprobs=[-999.0, *odd.behavior_logprobs[1:]])
    sequences = [changed if s is odd else s for s in batch.sequences]
    where = rf"algorithm\.{key} .*own\.py:{said} of a micro-batch, first in the trajectory {odd.sequence_id}"
    with pytest.raises(InputError, match=where + ".*run the same command again"):
        learner.step(dataclasses.replace(batch, sequences=sequences))
    if name != "steep":
        # Found before the optimizer: no weight moved.
        assert all(torch.equal(each, before[name]) for name, each in copy_weights(learner.model).items())
    # Mended, or on other data, the same learner's recipe trains.
    assert make_learner(folder, algorithm=algorithm).step(batch)["optimizer_steps"] == 1.0


def test_an_own_term_of_another_shape_is_named_with_its_micro_batch(tmp_path: Path, folder: Path):
    (tmp_path / "own.py").write_text(OWN.format(bad="0"))
    learner = make_learner(folder, algorithm={"importance_weight": f"{tmp_path}/own.py:short"})
    batch = random_batch(3)
    odd = [
        dataclasses.replace(s, behavior_logprobs=[-999.0] * len(s.response_tokens)) for s in batch.sequences
    ]
    with pytest.raises(
        InputError, match=r"short gave \(3,\) for \d+ tokens.* called for the trajectories 3-"
    ):
        learner.step(dataclasses.replace(batch, sequences=odd))


def test_a_divergence_names_the_recipes_own_terms(tmp_path: Path, folder: Path):
    (tmp_path / "own.py").write_text("def raw(group, algorithm): return list(group.rewards)")
    learner = make_learner(folder, algorithm={"advantage": f"{tmp_path}/own.py:raw"})
    batch = random_batch(3)
    poisoned = [dataclasses.replace(batch.sequences[0], advantage=3e38), *batch.sequences[1:]]
    with pytest.raises(Diverged, match=r"look at algorithm\.advantage .*own\.py:raw first"):
        learner.step(Batch(3, 1.0, poisoned))


def test_mismatch_and_staleness_are_told_apart(folder: Path):
    batch = random_batch(5, temperature=1.0)
    model = reference_model(folder)
    # Fresh tokens carry exactly the trainer's log-probs, stale ones are 0.3 more likely than that.
    sequences = []
    for sequence in batch.sequences:
        with torch.no_grad():
            exact = reference_logprobs(model, sequence, 1.0)
        stale = torch.tensor(sequence.token_versions) < 5
        sequences.append(
            dataclasses.replace(sequence, behavior_logprobs=torch.where(stale, exact + 0.3, exact).tolist())
        )
    metrics, _ = gradient_of(make_learner(folder), Batch(5, 1.0, sequences))
    lags = [5 - version for sequence in sequences for version in sequence.token_versions]
    # Differences of rounding, about 1e-6: k3 is half their square, and never negative.
    assert 0.0 <= metrics["mismatch_kl"] < 1e-10
    assert metrics["mismatch_kl_k1"] == pytest.approx(0.0, abs=1e-5)
    # r = e^-0.3: k1 = 0.3, k3 = e^-0.3 - 1 + 0.3
    assert metrics["staleness_kl_k1"] == pytest.approx(0.3, abs=1e-5)
    assert metrics["staleness_kl"] == pytest.approx(math.exp(-0.3) - 0.7, abs=1e-5)
    assert metrics["staleness_mean"] == pytest.approx(sum(lags) / len(lags))
    assert metrics["staleness_max"] == max(lags)
    assert metrics["max_importance_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["capped_share"] == 0.0


def test_tokens_over_an_old_cache_are_told_apart_from_the_mismatch(folder: Path):
    batch = random_batch(5, temperature=1.0)
    model = reference_model(folder)
    # Half of each response went on over old keys and values, 0.2 less likely than the trainer finds it.
    sequences = []
    for sequence in batch.sequences:
        with torch.no_grad():
            exact = reference_logprobs(model, sequence, 1.0)
        length = len(sequence.response_tokens)
        continued = torch.arange(length) >= length // 2
        sequences.append(
            dataclasses.replace(
                sequence,
                token_versions=[5] * length,
                are_continued=continued.tolist(),
                behavior_logprobs=torch.where(continued, exact - 0.2, exact).tolist(),
            )
        )
    metrics, _ = gradient_of(make_learner(folder), Batch(5, 1.0, sequences))
    share = sum(sum(s.are_continued) for s in sequences) / sum(len(s.are_continued) for s in sequences)
    assert metrics["continued_share"] == pytest.approx(share)
    # r = e^0.2: k3 = e^0.2 - 1 - 0.2
    assert metrics["continued_kl"] == pytest.approx(math.exp(0.2) - 1.2, abs=1e-5)
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["mismatch_logprob_max"] < 1e-5
    assert math.isnan(metrics["staleness_kl"])


def test_bfloat16_weights_learn_from_float32_copies(folder: Path):
    # A step of 1e-5 is lost on most bfloat16 weights; the float32 copies must add many of them up.
    trainer = {"learning_rate": 1e-5}
    learner = make_learner(folder, model={"dtype": "bfloat16"}, trainer=trainer)
    exact = make_learner(folder, trainer=trainer)
    before, start = copy_weights(learner.model), copy_weights(exact.model)
    for step in range(60):
        batch = dataclasses.replace(random_batch(0), taken_version=step)
        learner.step(batch)
        exact.step(batch)
    name = "model.layers.0.mlp.down_proj.weight"
    moved = (copy_weights(learner.model)[name].float() - before[name].float()).flatten()
    wanted = (copy_weights(exact.model)[name] - start[name]).flatten()
    assert torch.nn.functional.cosine_similarity(moved, wanted, dim=0) > 0.7
