"""The learner under every algorithm: splits, several steps, reference and entropy, on a real tiny model."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, gradient_of, is_same, make_learner, worst_difference
from fakes.models import random_batch, reference_logprobs, reference_model
from fakes.sequences import with_observed
from torch import Tensor

from asyncrl.algorithms.batch_advantages import finish_batch
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, ScoredSequence, root_id
from asyncrl.trainer.packing.batch import mini_batches, rank_micro_batches
from asyncrl.trainer.parts.reference import Reference
from asyncrl.trainer.step.batch_values import prompt_lengths
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.objective import Objective
from asyncrl.trainer.step.optimizer import set_learning_rate
from asyncrl.trainer.step.part import MiniBatch

REJECTIONS = [
    "token_range",
    {"name": "geometric_mean", "low": 0.01, "high": 100.0},
    {"name": "second_moment", "limit": 2.0},
    "token_veto",
]
COMBINATIONS = [
    {"surrogate": "ppo_clip", "importance_weight": "masked", "rejection": REJECTIONS},
    {
        "surrogate": {"name": "ppo_clip", "dual_clip": 3.0},
        "importance_weight": "none",
        "clip_around": "behavior",
    },
    {"surrogate": "gspo", "importance_weight": "sequence_truncated", "reduction": "sequence_mean"},
    {"surrogate": "gmpo", "importance_weight": "sequence_masked", "reduction": "sequence_mean"},
    {
        "surrogate": "cispo",
        "kl": {"coefficient": 0.1},
        "entropy_bonus": {"coefficient": 0.01},
        "probability_damping": 0.2,
        "top_entropy_share": 0.4,
    },
    {"surrogate": "ratio", "trust_region": ["dppo_tv", "kpop"], "behavior_kl_coefficient": 0.01},
    {"surrogate": "sapo", "kl": {"coefficient": 0.1, "estimator": "unbiased"}, "trust_region": ["ipo"]},
    {"surrogate": "reinforce", "kl": {"coefficient": 0.1, "place": "reward", "estimator": "k1"}},
    {"surrogate": "ppo_clip", "proximal": "interpolated", "rejection": ["second_moment"]},
    {
        "surrogate": "sapo",
        "proximal": "interpolated",
        "trust_region": [{"name": "second_moment_clip", "limit": 0.02}, "kpop"],
        "entropy_control": {"name": "kl_cov", "share": 0.1},
        "top_entropy_share": 0.6,
        "behavior_kl_coefficient": 0.01,
    },
    {
        "surrogate": "gspo",
        "importance_weight": "none",
        "clip_around": "behavior",
        "entropy_control": {"name": "kl_cov", "share": 0.1, "coefficient": 1.0},
    },
]


TYPICAL = (0, 2, 4, 7, 9)
"""Places in COMBINATIONS that have every kind of term once. The others are slow."""
each_combination = pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(
            algorithm, id=f"{algorithm['surrogate']}{i}", marks=[] if i in TYPICAL else [pytest.mark.slow]
        )
        for i, algorithm in enumerate(COMBINATIONS)
    ],
)


def gradients(learner: Learner, batch: Batch) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The policy has moved since the proximal one by -0.3, 0 or 0.3 per token, however they are packed."""
    return gradient_of(learner, batch, lambda targets: 0.3 * (targets % 3 - 1))


def near(batch: Batch, folder: Path, *, noise: float = 0.3) -> Batch:
    """The batch with behavior log-probs near the model's own, so that no weight is extreme."""
    model, generator = reference_model(folder), torch.Generator().manual_seed(3)
    sequences = []
    for sequence in batch.sequences:
        with torch.no_grad():
            exact = reference_logprobs(model, sequence, batch.temperature)
        behavior = exact + noise * torch.randn(len(exact), generator=generator)
        sequences.append(dataclasses.replace(sequence, behavior_logprobs=behavior.tolist()))
    return dataclasses.replace(batch, sequences=sequences)


@each_combination
def test_splitting_into_micro_batches_changes_nothing(folder: Path, algorithm: dict):
    batch = near(random_batch(2, num_groups=4, group_size=4), folder)
    whole, split = (
        make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
        for budget in (8192, 30)
    )
    metrics, wanted = gradients(whole, batch)
    split_metrics, got = gradients(split, batch)
    assert worst_difference(got, wanted) < 1e-5
    assert metrics["loss"] != 0.0
    for name in metrics.keys() - {"num_packed_tokens"}:
        assert split_metrics[name] == pytest.approx(metrics[name], rel=1e-6, abs=1e-5, nan_ok=True), name


@each_combination
def test_what_sequences_share_is_computed_once_and_changes_nothing(folder: Path, algorithm: dict):
    # Of three words, so that many responses begin alike, some prompts too, and some responses are equal.
    batch = near(random_batch(2, num_groups=4, group_size=5, longest=6, vocabulary=3), folder)
    together, alone = (
        make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
        for budget in (8192, 1)
    )
    metrics, got = gradients(together, batch)
    alone_metrics, wanted = gradients(alone, batch)
    assert metrics["num_packed_tokens"] < 0.5 * alone_metrics["num_packed_tokens"]
    assert worst_difference(got, wanted) < 1e-5
    for name in metrics.keys() - {"num_packed_tokens"}:
        assert metrics[name] == pytest.approx(alone_metrics[name], rel=1e-6, abs=1e-5, nan_ok=True), name


@each_combination
def test_observed_tokens_are_context_and_nothing_else(folder: Path, algorithm: dict):
    """Two turns give what each gives alone, after a prompt that holds all before it, where no formula looks
    at whole sequences; with all of them, packing changes nothing."""
    batch = near(random_batch(2, num_groups=3, group_size=3, longest=9), folder)
    turns, apart = [], []
    for one in batch.sequences:
        size = len(one.response_tokens)
        if size < 4:
            continue
        cut = dataclasses.replace(one, advantage=1.0)
        turns.append(with_observed(cut, [(1, size - 2)]))
        apart += [_part(cut, 0, 1), _part(cut, size - 2, size)]
    learner = make_learner(folder, algorithm=algorithm)
    _, got = gradients(learner, dataclasses.replace(batch, sequences=turns))
    if algorithm["surrogate"] in ("ppo_clip", "cispo") and "rejection" not in algorithm:
        _, wanted = gradients(learner, dataclasses.replace(batch, sequences=apart))
        assert worst_difference(got, wanted) < 1e-5
    split = make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": 1})
    _, alone = gradients(split, dataclasses.replace(batch, sequences=turns))
    assert worst_difference(got, alone) < 1e-5


def _part(one: ScoredSequence, first: int, end: int) -> ScoredSequence:
    """Its response tokens [first, end), after a prompt of all before them."""
    return dataclasses.replace(
        one,
        sequence_id=f"{one.sequence_id}-{first}",
        prompt_tokens=one.prompt_tokens + one.response_tokens[:first],
        response_tokens=one.response_tokens[first:end],
        behavior_logprobs=one.behavior_logprobs[first:end],
        token_versions=one.token_versions[first:end],
        are_continued=one.are_continued[first:end],
    )


def in_branches(batch: Batch) -> tuple[list[ScoredSequence], list[ScoredSequence]]:
    """Trajectories of two turns; and the same with the second turn, or the last token of the first, in a
    branch whose context is all before it."""
    linear, branched = [], []
    for number, one in enumerate(batch.sequences):
        size = len(one.response_tokens)
        if size < 4:
            linear.append(one)
            branched.append(one)
            continue
        whole = with_observed(one, [(1, size - 2)])
        linear.append(whole)
        last = dataclasses.replace(_part(one, size - 2, size), sequence_id=f"{one.sequence_id}.1")
        first = dataclasses.replace(_part(one, 0, 1), sequence_id=one.sequence_id)
        branched += [first, last] if number % 2 else [last, first]
    return linear, branched


@each_combination
def test_a_trajectory_in_branches_is_trained_as_one(folder: Path, algorithm: dict):
    """A sum over a sequence is summed over all branches, the sequence counts once, and each token
    once, however they are packed. KL in the reward runs up along each branch alone."""
    batch = near(random_batch(2, num_groups=3, group_size=3, longest=9), folder)
    linear, branched = (dataclasses.replace(batch, sequences=s) for s in in_branches(batch))
    assert len(branched.sequences) > len(linear.sequences)
    learner = make_learner(folder, algorithm=algorithm)
    metrics, got = gradients(learner, branched)
    if algorithm.get("kl", {}).get("place") != "reward":
        wanted_metrics, wanted = gradients(learner, linear)
        assert worst_difference(got, wanted) < 1e-5
        # The turns of a response are quarters of its tokens, in whichever order branches have them.
        for name in ("loss", "importance_weight_mean", "num_tokens"):
            if name in metrics:
                assert metrics[name] == pytest.approx(wanted_metrics[name], rel=1e-5, abs=1e-6), name
    for budget in (1, 30):
        split = make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
        split_metrics, alone = gradients(split, branched)
        assert worst_difference(got, alone) < 1e-5
        assert split_metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5, abs=1e-6)


def test_branches_of_a_trajectory_stay_together_and_count_once():
    batch = random_batch(2, num_groups=4, group_size=4, longest=9)
    _, branched = in_branches(batch)
    parts = mini_batches(dataclasses.replace(batch, sequences=branched), 3, seed=1)
    places = [{root_id(s.sequence_id) for s in part.sequences} for part in parts]
    assert sum(map(len, places)) == len(batch.sequences) == len(set.union(*places))
    assert max(map(len, places)) - min(map(len, places)) <= 1
    names, lines = [], []
    for micro in rank_micro_batches(
        dataclasses.replace(batch, sequences=branched), budget_tokens=12, rank=0, num_ranks=1
    ):
        names += list(micro.names)
        lines += list(micro.lines)
        of_lines = [root_id(micro.lines[i]) for i in micro.line_ids.tolist()]
        assert of_lines == [micro.names[i] for i in micro.sequence_ids.tolist()]
        assert torch.equal(micro.sequence_ids, micro.sequence_ids.sort().values)
        assert torch.equal(micro.line_ids, micro.line_ids.sort().values)
    assert sorted(names) == sorted(s.sequence_id for s in batch.sequences)
    assert sorted(lines) == sorted(s.sequence_id for s in branched)


def test_a_micro_batch_holds_its_sequences_whole_and_in_order():
    batch = random_batch(2, num_groups=6, group_size=4)
    found = []
    for micro in rank_micro_batches(batch, budget_tokens=30, rank=0, num_ranks=1):
        counts = torch.bincount(micro.sequence_ids)
        assert torch.equal(micro.sequence_ids, torch.repeat_interleave(counts))
        ends = counts.cumsum(0).tolist()
        found += [micro.targets[b - n : b].tolist() for n, b in zip(counts.tolist(), ends, strict=True)]
    assert sorted(found) == sorted(s.response_tokens for s in batch.sequences)


def test_kl_in_the_loss_pulls_back_to_the_base_model(folder: Path):
    algorithm = {"kl": {"coefficient": 0.5, "estimator": "k3"}, "importance_weight": "none"}
    learner = make_learner(folder, algorithm=algorithm)
    with torch.no_grad():
        learner.model[0].output_layer.weight.mul_(1.1)
    batch = random_batch(1)
    still = Batch(1, 0.8, [dataclasses.replace(s, advantage=0.0) for s in batch.sequences])
    metrics, got = gradients(learner, still)
    moved, base = reference_model(folder), reference_model(folder)
    with torch.no_grad():
        moved.lm_head.weight.mul_(1.1)
    total, num_tokens = torch.zeros(()), 0
    for sequence in still.sequences:
        difference = reference_logprobs(moved, sequence, 0.8)
        with torch.no_grad():
            reference = reference_logprobs(base, sequence, 0.8)
        difference = difference - reference
        total = total + 0.5 * ((-difference).exp() - 1 + difference).sum()
        num_tokens += len(difference)
    (total / num_tokens).backward()
    assert metrics["loss"] == pytest.approx((total / num_tokens).item(), rel=1e-4)
    assert worst_difference(got, {n: p.grad for n, p in moved.named_parameters()}) < 1e-4


def test_kl_in_the_reward_charges_a_token_for_itself_and_those_after_it(folder: Path):
    algorithm = {
        "kl": {"coefficient": 0.5, "place": "reward", "estimator": "k1"},
        "importance_weight": "none",
    }
    learner = make_learner(folder, algorithm=algorithm | {"surrogate": "reinforce"})
    with torch.no_grad():
        learner.model[0].output_layer.weight.mul_(1.1)
    batch = random_batch(1)
    metrics = learner.step(batch)
    moved, base = reference_model(folder), reference_model(folder)
    with torch.no_grad():
        moved.lm_head.weight.mul_(1.1)
        total, num_tokens = 0.0, 0
        for sequence in batch.sequences:
            current = reference_logprobs(moved, sequence, 1.0)
            charged = 0.5 * (current - reference_logprobs(base, sequence, 1.0))
            for t in range(len(current)):
                total -= (sequence.advantage - charged[t:].sum().item()) * current[t].item()
                num_tokens += 1
    assert metrics["loss"] == pytest.approx(total / num_tokens, abs=1e-4)


@pytest.mark.parametrize("steps_per_batch", [1, 2])
@pytest.mark.parametrize("advantage", ["reinforce_pp", "reinforce_pp_baseline"])
def test_kl_in_the_reward_is_taken_off_before_the_batch_is_whitened(
    folder: Path, advantage: str, steps_per_batch: int, monkeypatch: pytest.MonkeyPatch
):
    algorithm = {"advantage": advantage, "kl": {"coefficient": 0.5, "place": "reward", "estimator": "k1"}}
    trainer = {"optimizer_steps_per_batch": steps_per_batch, "tokens_per_micro_batch": 40}
    learner = make_learner(folder, algorithm=algorithm, trainer=trainer, rollout={"mask_staleness": 1})
    with torch.no_grad():
        learner.model[0].output_layer.weight.mul_(1.1)
    batch = random_batch(2)
    trained, real = {}, learner.objective
    monkeypatch.setattr(learner, "objective", spy_on(real, trained))
    learner.step(batch)
    moved, base = reference_model(folder), reference_model(folder)
    wanted, counted = {}, []
    with torch.no_grad():
        moved.lm_head.weight.mul_(1.1)
        for sequence in batch.sequences:
            charged = 0.5 * (
                reference_logprobs(moved, sequence, 1.0) - reference_logprobs(base, sequence, 1.0)
            )
            is_counted = [batch.taken_version - version <= 1 for version in sequence.token_versions]
            charged = charged * torch.tensor(is_counted)
            found = [sequence.advantage - charged[t:].sum().item() for t in range(len(charged))]
            wanted[tuple(sequence.response_tokens)] = found
            counted += [a for a, counts in zip(found, is_counted, strict=True) if counts]
    mean = sum(counted) / len(counted)
    std = (sum((a - mean) ** 2 for a in counted) / len(counted)) ** 0.5
    assert trained.keys() == wanted.keys()
    for tokens, found in wanted.items():
        assert trained[tokens] == pytest.approx([(a - mean) / std for a in found], abs=1e-3)


@pytest.mark.parametrize("steps_per_batch", [1, 2])
def test_under_rloo_the_others_kl_is_in_the_baseline(
    folder: Path, steps_per_batch: int, monkeypatch: pytest.MonkeyPatch
):
    algorithm = {"advantage": "rloo", "kl": {"coefficient": 0.5, "place": "reward", "estimator": "k1"}}
    # Groups are cut by micro-batches and by the boundary between the steps.
    trainer = {"optimizer_steps_per_batch": steps_per_batch, "tokens_per_micro_batch": 20}
    learner = make_learner(folder, algorithm=algorithm, trainer=trainer)
    with torch.no_grad():
        learner.model[0].output_layer.weight.mul_(1.1)
    batch, trained = random_batch(2, num_groups=5), {}
    monkeypatch.setattr(learner, "objective", spy_on(learner.objective, trained))
    learner.step(batch)
    moved, base, charged = reference_model(folder), reference_model(folder), {}
    with torch.no_grad():
        moved.lm_head.weight.mul_(1.1)
        for s in batch.sequences:
            kl = reference_logprobs(moved, s, 1.0) - reference_logprobs(base, s, 1.0)
            charged[s.sequence_id] = (0.5 * kl).tolist()
    for sequence in batch.sequences:
        group = sequence.sequence_id.rpartition("-")[0]
        others = [
            sum(own)
            for name, own in charged.items()
            if name.startswith(f"{group}-") and name != sequence.sequence_id
        ]
        own = charged[sequence.sequence_id]
        wanted = [sequence.advantage - sum(own[t:]) + sum(others) / len(others) for t in range(len(own))]
        assert trained[tuple(sequence.response_tokens)] == pytest.approx(wanted, abs=1e-4)


def spy_on(objective: Objective, advantages: dict[tuple[int, ...], list[float]]) -> Objective:
    """The objective, which notes the advantages of each sequence under its tokens."""

    class Spy(Objective):
        def __call__(self, micro, *arguments, **keywords):
            for i in range(int(micro.sequence_ids.max()) + 1):
                own = micro.sequence_ids == i
                advantages[tuple(micro.targets[own].tolist())] = micro.advantages[own].tolist()
            return super().__call__(micro, *arguments, **keywords)

    return Spy(objective.algorithm, max_new_tokens=64, mask_staleness=objective._limit)


def test_the_second_moment_is_bounded_over_all_micro_batches(folder: Path):
    batch = near(random_batch(2, num_groups=6, group_size=4), folder, noise=0.4)
    shares = []
    for budget in (8192, 30):
        algorithm = {"rejection": [{"name": "second_moment", "limit": 0.1}], "importance_weight": "none"}
        learner = make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
        shares.append(learner.step(batch)["masked_share"])
    model, away, total = reference_model(folder), [], 0
    with torch.no_grad():
        for sequence in batch.sequences:
            rho = reference_logprobs(model, sequence, 1.0) - torch.tensor(sequence.behavior_logprobs)
            away += [x * x for x in rho.tolist() if x * sequence.advantage > 0]
            total += len(rho)
    away.sort()
    kept = len(away)
    while sum(away[:kept]) > 0.1 * kept:
        kept -= 1
    assert 0 < kept < len(away)
    assert shares == [(len(away) - kept) / total] * 2


def test_the_reference_stays_the_base_model_and_is_absent_without_a_coefficient(folder: Path):
    assert make_learner(folder).part(Reference) is None
    learner = make_learner(folder, algorithm={"kl": {"coefficient": 0.1}}, trainer={"learning_rate": 0.01})
    before = [parameter.clone() for parameter in learner.part(Reference).held.chunks[0].parameters()]
    learner.step(random_batch(0))
    after = list(learner.part(Reference).held.chunks[0].parameters())
    assert all(torch.equal(a, b) and not b.requires_grad for a, b in zip(before, after, strict=True))


def test_mini_batches_share_out_every_sequence_once_with_its_group():
    batch = random_batch(0, num_groups=5, group_size=3)
    parts = mini_batches(batch, 4, seed=0)
    assert [len(part.sequences) for part in parts] == [3, 4, 4, 4]
    dealt = [s for part in parts for s in part.sequences]
    assert sorted(s.sequence_id for s in dealt) == sorted(s.sequence_id for s in batch.sequences)
    groups = [s.sequence_id.rsplit("-", 1)[0] for s in dealt]
    assert len([key for key, _ in itertools.groupby(groups)]) == 5
    assert len(mini_batches(Batch(0, 1.0, batch.sequences[:2]), 4, seed=0)) == 2
    assert [part.sequences for part in mini_batches(Batch(0, 1.0, []), 4, seed=0)] == [[]]


def test_samples_of_a_group_whose_contexts_differ_stay_one_group():
    """As those of an agent, which begins each conversation with another sentence."""
    batch = random_batch(0, num_groups=5, group_size=3)
    own = [dataclasses.replace(s, prompt_tokens=[i, *s.prompt_tokens]) for i, s in enumerate(batch.sequences)]
    mixed = dataclasses.replace(batch, sequences=own)
    assert prompt_lengths(mixed, mask_staleness=None) == prompt_lengths(batch, mask_staleness=None)
    # 3 responses of a group: each has the tokens of all three.
    first = batch.sequences[:3]
    total = sum(sequence.num_sampled() for sequence in first)
    assert [prompt_lengths(mixed, mask_staleness=None)[s.sequence_id] for s in first] == [total] * 3
    assert [order_of([part]) for part in mini_batches(mixed, 4, seed=0)] == [
        order_of([part]) for part in mini_batches(batch, 4, seed=0)
    ]


def test_mini_batches_are_shuffled_by_seed_and_step_alone():
    batches = [random_batch(step, num_groups=8) for step in (0, 0, 1)]
    orders = [order_of(mini_batches(batch, 2, seed=3)) for batch in batches]
    assert orders[0] == orders[1]
    again = dataclasses.replace(batches[0], taken_version=1)
    assert (
        order_of(mini_batches(again, 2, seed=3)) != orders[0] != order_of(mini_batches(batches[0], 2, seed=4))
    )
    # One step per batch keeps the order.
    assert order_of(mini_batches(batches[0], 1, seed=3)) == [s.sequence_id for s in batches[0].sequences]


def test_mini_batches_are_those_of_the_chosen_order():
    batch = random_batch(3, num_groups=6, group_size=4)
    names = [sequence.sequence_id for sequence in batch.sequences]

    def dealt(order: str, *, seed: int = 0) -> list[list[str]]:
        parts = mini_batches(batch, 3, seed=seed, order=order)
        return [[sequence.sequence_id for sequence in part.sequences] for part in parts]

    assert dealt("batch") == dealt("batch", seed=1) == [names[:8], names[8:16], names[16:]]
    mixed = dealt("responses")
    assert mixed == dealt("responses") != dealt("responses", seed=1)
    assert sorted(itertools.chain(*mixed)) == sorted(names) and [len(part) for part in mixed] == [8, 8, 8]
    groups = [{name.rsplit("-", 1)[0] for name in part} for part in mixed]
    # Two groups fill a part; single responses come from more.
    assert min(map(len, groups)) > 2
    assert all(len({name.rsplit("-", 1)[0] for name in part}) == 2 for part in dealt("groups"))


def test_repeated_groups_which_come_last_are_spread_over_the_steps():
    counts = [0] * 4
    for step in range(20):
        batch = random_batch(step, num_groups=16)
        repeated = {s.sequence_id for s in batch.sequences[-4 * 3 :]}
        for i, part in enumerate(mini_batches(batch, 4, seed=0)):
            counts[i] += sum(s.sequence_id in repeated for s in part.sequences)
    # 20 batches of 12 repeated sequences: 60 per step on average.
    assert sum(counts) == 240 and min(counts) > 35


def order_of(parts: list[Batch]) -> list[str]:
    return [sequence.sequence_id for part in parts for sequence in part.sequences]


@pytest.mark.parametrize("order", ["groups", "batch", "responses"])
def test_several_steps_in_their_order_clip_around_the_policy_before_the_first_of_them(
    folder: Path, order: str
):
    trainer = {"optimizer_steps_per_batch": 3, "learning_rate": 1e-3, "mini_batch_order": order}
    batch = near(random_batch(4, num_groups=6), folder)
    learner = make_learner(folder, trainer=trainer)
    metrics = learner.step(batch)
    # By hand: the proximal log-probs of all mini-batches before the first step, then one step after another.
    again = make_learner(folder, trainer={"learning_rate": 1e-3})
    parts = [
        rank_micro_batches(part, budget_tokens=8192, rank=0, num_ranks=1)
        for part in mini_batches(batch, 3, seed=0, order=order)
    ]
    proximals = [again.passes.logprobs(again.parallel_chunks, part, 1.0) for part in parts]
    set_learning_rate(again.optimizer, 1e-3, again.section)
    for part, proximal in zip(parts, proximals, strict=True):
        again.accumulate(MiniBatch(part, 1.0, proximals=proximal))
        again.optimizer.step()
    wanted = copy_weights(again.model)
    assert all(
        torch.allclose(tensor, wanted[name], atol=1e-6)
        for name, tensor in copy_weights(learner.model).items()
    )
    assert metrics["num_tokens"] == sum(len(s.response_tokens) for s in batch.sequences)
    assert metrics["policy_kl"] > 0.0


def test_with_one_step_the_policy_has_not_moved(folder: Path):
    metrics = make_learner(folder).step(random_batch(4))
    assert metrics["policy_kl"] == metrics["clipped_share"] == 0.0


def test_proximal_log_probs_that_are_computed_are_those_that_come_for_free(folder: Path):
    learner = make_learner(folder)
    batch = random_batch(4)
    micro_batches = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    free = learner.accumulate(MiniBatch(micro_batches, 1.0))
    computed = learner.passes.logprobs(learner.parallel_chunks, micro_batches, 1.0)
    assert not any(each.requires_grad for each in computed)
    assert learner.accumulate(MiniBatch(micro_batches, 1.0, proximals=computed)) == pytest.approx(
        free, nan_ok=True
    )


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_log_probs_that_are_no_numbers_leave_sequence_terms_finite(folder: Path, surrogate: str):
    algorithm = {
        "surrogate": surrogate,
        "importance_weight": "sequence_truncated",
        "reduction": "sequence_mean",
    }
    batch = near(random_batch(3), folder)
    first, *rest = batch.sequences
    broken = dataclasses.replace(first, behavior_logprobs=[math.nan] * len(first.response_tokens))
    metrics, got = gradients(make_learner(folder, algorithm=algorithm), Batch(3, 1.0, [broken, *rest]))
    _, wanted = gradients(make_learner(folder, algorithm=algorithm), Batch(3, 1.0, rest))
    assert worst_difference(got, wanted) < 1e-5
    assert metrics["nonfinite_tokens"] == len(first.response_tokens)


def test_tokens_staler_than_allowed_leave_the_loss_and_are_counted(folder: Path):
    batch = near(random_batch(3), folder)
    first, *rest = batch.sequences
    size = len(first.response_tokens)
    # At step 3 a token of version 0 has lag 3, one of version 2 lag 1.
    stale = dataclasses.replace(first, token_versions=[0] * size)
    rest = [dataclasses.replace(s, token_versions=[2] * len(s.response_tokens)) for s in rest]
    learner = make_learner(folder)
    learner.objective = Objective(learner.objective.algorithm, max_new_tokens=64, mask_staleness=2)
    metrics, got = gradients(learner, Batch(3, 1.0, [stale, *rest]))
    _, wanted = gradients(make_learner(folder), Batch(3, 1.0, rest))
    assert worst_difference(got, wanted) < 1e-5
    assert (metrics["too_stale_tokens"], metrics["nonfinite_tokens"]) == (size, 0.0)


JUDGED_TOGETHER = {
    "proximal": "interpolated",
    "trust_region": [{"name": "second_moment_clip", "limit": 0.02}],
    "entropy_control": {"name": "clip_cov", "low": 0.01, "high": 50.0, "share": 0.2},
    "top_entropy_share": 0.6,
    "nll_coefficient": 0.1,
}
"""Terms that look at all tokens of an optimizer step."""


@pytest.mark.parametrize(
    "own",
    [
        {"reduction": "token_mean"},
        {"reduction": "sequence_mean"},
        {"reduction": "prompt_mean"},
        pytest.param(JUDGED_TOGETHER, id="judged together"),
    ],
    ids=lambda own: own["reduction"],
)
def test_responses_that_were_cut_off_leave_numerator_and_denominator(folder: Path, own: dict):
    algorithm = own | {"kl": {"coefficient": 0.1}, "entropy_bonus": {"coefficient": 0.01}}
    batch = near(random_batch(3), folder)
    sequences = [
        dataclasses.replace(
            s, finish="length" if i % 3 == 1 else "stop", outcome="correct" if i % 2 else "wrong"
        )
        for i, s in enumerate(batch.sequences)
    ]
    left = [s for s in sequences if s.finish == "stop"]
    masking = Algorithm(masks_cut_off=True, **algorithm)
    found = {}
    for budget in (8192, 30):
        learner = make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
        masked = finish_batch(dataclasses.replace(batch, sequences=sequences), masking)
        found[budget] = gradients(learner, masked)
    wanted_metrics, wanted = gradients(
        make_learner(folder, algorithm=algorithm), dataclasses.replace(batch, sequences=left)
    )
    num_cut_off = sum(s.num_sampled() for s in sequences) - sum(s.num_sampled() for s in left)
    for metrics, got in found.values():
        assert worst_difference(got, wanted) < 1e-5
        for name in ("loss", "held_back_tokens", "trust_region_share", "sequence_effective_share"):
            assert metrics[name] == pytest.approx(wanted_metrics[name], rel=1e-5), name
        assert (metrics["held_back_tokens"] > 0) == (own is JUDGED_TOGETHER)
        assert (metrics["masked_cut_off_tokens"], metrics["too_stale_tokens"]) == (num_cut_off, 0.0)
        share = num_cut_off / (num_cut_off + metrics["num_tokens"])
        assert metrics["masked_cut_off_share"] == pytest.approx(share)
        assert metrics["left_out_share"] == pytest.approx(share)


def test_correct_responses_are_imitated_by_the_mean_of_their_tokens_however_they_are_packed(folder: Path):
    algorithm = {"surrogate": "reinforce", "importance_weight": "none", "nll_coefficient": 0.3}
    batch = near(random_batch(2), folder)
    sequences = [
        dataclasses.replace(s, outcome="correct" if i % 3 == 1 else "wrong", advantage=0.0)
        for i, s in enumerate(batch.sequences)
    ]
    batch = dataclasses.replace(batch, sequences=sequences)
    correct = dataclasses.replace(
        batch, sequences=[dataclasses.replace(s, advantage=0.3) for s in sequences if s.is_correct()]
    )
    plain = {key: value for key, value in algorithm.items() if key != "nll_coefficient"}
    _, wanted = gradients(make_learner(folder, algorithm=plain), correct)
    for budget in (8192, 30):
        learner = make_learner(folder, algorithm=algorithm, trainer={"tokens_per_micro_batch": budget})
        assert [learner.objective.teaches(s) for s in sequences] == [s.is_correct() for s in sequences]
        metrics, got = gradients(learner, batch)
        assert worst_difference(got, wanted) < 1e-5
    none_correct = dataclasses.replace(batch, sequences=[s for s in sequences if not s.is_correct()])
    metrics, _ = gradients(learner, none_correct)
    assert metrics["loss"] == 0.0


ORIGINS = """
from asyncrl.algorithms.inputs import per_token
def weigh(inputs, algorithm):
    ended = zip(inputs.finishes, inputs.sources)
    shares = [1.0 + 2.0 * (finish == "length") + 4.0 * (source == "hard") for finish, source in ended]
    return per_token(shares, inputs) / (1 + inputs.lags) + inputs.versions
"""


def test_a_term_of_ones_own_knows_lag_version_finish_and_source_however_it_is_packed(
    folder: Path, tmp_path: Path
):
    (tmp_path / "own.py").write_text(ORIGINS)
    batch = random_batch(3)
    sequences = [
        dataclasses.replace(
            s, finish=("stop", "length")[i % 2], source=("easy", "hard", "other")[i % 3], is_masked=i == 5
        )
        for i, s in enumerate(batch.sequences)
    ]
    wanted = [
        (1 + 2 * (s.finish == "length") + 4 * (s.source == "hard")) / (1 + 3 - version) + version
        for s in sequences
        if not s.is_masked
        for version in s.token_versions
    ]
    found = []
    for budget in (8192, 30):
        learner = make_learner(
            folder,
            algorithm={"importance_weight": f"{tmp_path}/own.py:weigh"},
            trainer={"tokens_per_micro_batch": budget},
        )
        metrics, slopes = gradients(learner, dataclasses.replace(batch, sequences=sequences))
        assert metrics["weight_mean"] == pytest.approx(sum(wanted) / len(wanted))
        found.append(slopes)
    assert worst_difference(*found) < 1e-5


def test_a_surrogate_of_ones_own_trains_like_the_built_in_that_it_copies(folder: Path, tmp_path: Path):
    source = "def loss(inputs, algorithm): return -inputs.advantages * inputs.current\n"
    (tmp_path / "own.py").write_text(source)
    own = make_learner(folder, algorithm={"surrogate": f"{tmp_path}/own.py:loss"})
    built_in = make_learner(folder, algorithm={"surrogate": "reinforce"})
    for learner in (own, built_in):
        learner.step(random_batch(0))
    assert is_same(copy_weights(own.model), copy_weights(built_in.model))


def test_an_interpolated_policy_costs_no_pass_and_clips_stale_tokens_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    batch = near(random_batch(4, num_groups=6, group_size=4), folder)
    assert {batch.taken_version - v for s in batch.sequences for v in s.token_versions} >= {0, 1, 2}
    learner = make_learner(
        folder,
        algorithm={"proximal": "interpolated", "clip_low": 0.01, "clip_high": 0.01},
        trainer={"optimizer_steps_per_batch": 2, "learning_rate": 1e-9},
    )

    def fail(*arguments: object) -> None:
        raise AssertionError("a pass for log-probs")

    monkeypatch.setattr(learner.passes, "both_logprobs", fail)
    metrics = learner.step(batch)
    lags = [batch.taken_version - v for s in batch.sequences for v in s.token_versions]
    assert metrics["optimizer_steps"] == 2.0
    assert 0.0 < metrics["clipped_share"] <= sum(lag > 0 for lag in lags) / len(lags)
    # What is reported of staleness is of the policy itself, whatever ratios are taken against.
    plain = make_learner(folder, trainer={"optimizer_steps_per_batch": 2, "learning_rate": 1e-9})
    wanted = plain.step(batch)
    for name in ("staleness_kl", "mismatch_kl", "sequence_effective_share", "chi_square"):
        assert metrics[name] == pytest.approx(wanted[name], rel=1e-6), name


def test_clip_cov_costs_a_forward_pass_and_leaves_out_the_same_tokens_however_packed(folder: Path):
    algorithm = {"entropy_control": {"name": "clip_cov", "low": 0.1, "high": 50.0, "share": 0.2}}
    batch = near(random_batch(2, num_groups=6, group_size=4), folder)
    whole, split, plain = (
        make_learner(folder, algorithm=own, trainer={"tokens_per_micro_batch": budget})
        for own, budget in ((algorithm, 8192), (algorithm, 30), ({}, 8192))
    )
    metrics, again, without = (learner.step(batch) for learner in (whole, split, plain))
    assert metrics["held_back_tokens"] == again["held_back_tokens"] == int(0.2 * metrics["num_tokens"])
    assert metrics["loss"] == pytest.approx(again["loss"], rel=1e-5) != without["loss"]
    assert metrics["grad_norm"] == pytest.approx(again["grad_norm"], rel=1e-4)
    assert without["held_back_tokens"] == 0.0
    spent, usual = (learner.passes.utilisation(1.0)["model_flops"] for learner in (whole, plain))
    assert spent == pytest.approx(usual * 4 / 3)


def test_the_top_by_entropy_are_found_by_a_pass_over_each_optimizer_step(folder: Path):
    batch = near(random_batch(2, num_groups=6, group_size=4), folder)
    learners = [
        make_learner(
            folder,
            algorithm={"top_entropy_share": share},
            trainer={"tokens_per_micro_batch": budget, "optimizer_steps_per_batch": 2},
        )
        for share, budget in ((0.25, 8192), (0.25, 30), (1.0, 8192))
    ]
    metrics, again, without = (learner.step(batch) for learner in learners)
    assert metrics["held_back_tokens"] == again["held_back_tokens"]
    assert 0.6 < metrics["held_back_tokens"] / metrics["num_tokens"] <= 0.75
    assert without["held_back_tokens"] == 0.0
    assert metrics["loss"] == pytest.approx(again["loss"], rel=1e-5) != without["loss"]
    assert metrics["grad_norm"] == pytest.approx(again["grad_norm"], rel=1e-4)
    spent, usual = (learners[i].passes.utilisation(1.0)["model_flops"] for i in (0, 2))
    # Two halves forward and backward, half a forward pass for proximal log-probs, two halves for entropies.
    assert spent / usual == pytest.approx((2 * 3 + 1 + 2) / (2 * 3 + 1), rel=0.05)
