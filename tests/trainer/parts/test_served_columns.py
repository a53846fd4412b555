"""Replayed routes against transformers that takes the same experts, and against the formula of the gates."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.columns import COLUMNS
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.sequences import with_column, with_routes
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.model.column_bytes import ROUTES
from asyncrl.model.folder import check_model_folder
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.network.convert import export_weights, load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import Policy, build_policy
from asyncrl.trainer.packing.batch import MicroBatch, make_micro_batch
from asyncrl.trainer.packing.routes import RecordedRoutes
from asyncrl.trainer.parts.reference import Reference
from asyncrl.trainer.parts.served_columns import Replay, record_routes
from asyncrl.trainer.step.learner import Learner

NUM_LAYERS, NUM_EXPERTS, NUM_CHOSEN = 2, 8, 3
SIZES = {"num_experts": NUM_EXPERTS, "num_experts_per_tok": NUM_CHOSEN, "moe_intermediate_size": 24}
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = SIZES | {"head_dim": 16, "norm_topk_prob": True}
    return write_model(tmp_path_factory.mktemp("experts"), "Qwen3Moe", **sizes)


def routed_batch(step: int, **options: int) -> Batch:
    batch = random_batch(step, temperature=TEMPERATURE, **options)
    return with_routes(batch, num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, num_chosen=NUM_CHOSEN)


def load(folder: Path, recompute: str = "none") -> tuple[Policy, Replay]:
    policy = build_policy(check_model_folder(folder), torch.float32, recompute=recompute)
    load_weights(policy, open_weights(folder))
    return policy, Replay(policy)


def told(sequence: ScoredSequence) -> np.ndarray:
    """[positions but the last, layers, chosen]."""
    return np.frombuffer(sequence.columns[ROUTES], np.uint8).reshape(-1, NUM_LAYERS, NUM_CHOSEN)


def make_take(router: torch.nn.Module, chosen: np.ndarray) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The output of transformers' router if it chose `chosen` [positions but the last, chosen]."""
    last = np.arange(NUM_CHOSEN)[None]
    indices = torch.from_numpy(np.concatenate([chosen, last]).astype(np.int64))

    def forward(hidden: Tensor) -> tuple[Tensor, ...]:
        logits = torch.nn.functional.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
        gates = torch.softmax(logits.gather(1, indices), -1)
        return logits, gates, indices

    return forward


def reference_of(model: torch.nn.Module, sequence: ScoredSequence) -> Tensor:
    for number, layer in enumerate(model.model.layers):
        layer.mlp.gate.forward = make_take(layer.mlp.gate, told(sequence)[:, number])
    return reference_logprobs(model, sequence, TEMPERATURE)


def watch_choices(policy: Policy) -> list[list[Tensor]]:
    """For each layer the experts of each token, [tokens, experts] bool, pass after pass."""
    found: list[list[Tensor]] = [[] for _ in range(NUM_LAYERS)]
    for number, layer in enumerate(policy[0].decoder.layers):
        layer.mlp.router.register_forward_hook(
            lambda _, __, outputs, number=number: found[number].append(outputs[1].detach().clone())
        )
    return found


def test_log_probs_and_gradients_are_those_of_a_model_that_takes_the_same_experts(experts: Path):
    batch = routed_batch(1)
    model = reference_model(experts)
    directions = torch.Generator().manual_seed(0)
    wanted, weights = [], []
    for sequence in batch.sequences:
        wanted.append(reference_of(model, sequence))
        weights.append(torch.randn(len(wanted[-1]), generator=directions))
        (wanted[-1] * weights[-1]).sum().backward()
    policy, _ = load(experts)
    micro = make_micro_batch(batch.sequences, 1, columns=COLUMNS)
    logprobs, _ = policy[0](micro, TEMPERATURE)
    (logprobs * torch.cat(weights)).sum().backward()
    assert (logprobs - torch.cat(wanted)).abs().max() < 1e-5
    gradients = dict(export_weights(policy, lambda parameter: parameter.grad))
    for number, layer in enumerate(model.model.layers):
        expected = layer.mlp.gate.weight.grad
        assert expected.abs().max() > 1e-3
        found = gradients[f"model.layers.{number}.mlp.gate.weight"]
        assert (found - expected).abs().max() < 1e-5 * max(1.0, expected.abs().max().item())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name in gradients:
            assert (gradients[name] - parameter.grad).abs().max() < 3e-5 * parameter.grad.abs().max(), name
    # Left alone, the routers choose otherwise.
    free, _ = policy[0]([micro.without_inputs()][0], TEMPERATURE)
    assert (free - logprobs).abs().max() > 0.01


def test_each_packed_token_takes_exactly_the_experts_of_its_sequence_and_padding_distinct_ones(experts: Path):
    batch = routed_batch(2)
    policy, replay = load(experts)
    choices = watch_choices(policy)
    micro = make_micro_batch(batch.sequences, 2, token_multiple=64, columns=COLUMNS)
    with torch.no_grad():
        policy[0](micro, TEMPERATURE)
    ends = np.cumsum([one.num_sampled() for one in batch.sequences])[:-1]
    predicting = np.split(micro.predicting.numpy(), ends)
    for number, (chosen,) in enumerate(choices):
        assert (chosen.sum(1) == NUM_CHOSEN).all()
        for one, places in zip(batch.sequences, predicting, strict=True):
            wanted = told(one)[len(one.prompt_tokens) - 1 :, number]
            found = [chosen[place].nonzero().squeeze(1).tolist() for place in places]
            assert found == np.sort(wanted, 1).tolist()
    # 3 of 8 experts at random are rarely those that the router would choose.
    assert 0.9 < replay.take_metrics()["routing_mismatch"] <= 1.0
    assert replay.take_metrics() == {"routing_mismatch": 0.0}


def test_gates_are_those_of_the_routers_own_logits_with_their_gradient(experts: Path):
    policy, _ = load(experts)
    router = policy[0].decoder.layers[1].mlp.router
    sequence = routed_batch(3).sequences[0]
    micro = make_micro_batch([sequence], 3, columns=COLUMNS)
    router.router_replay.note(router, (), {"packed_seq_params": micro.sequences})
    logits = torch.randn(len(micro.tokens), 1, NUM_EXPERTS, requires_grad=True)
    direction = torch.randn(len(micro.tokens), NUM_EXPERTS)
    probs, _ = router.routing(logits)
    (gradient,) = torch.autograd.grad((probs * direction).sum(), logits)
    indices = torch.from_numpy(told(sequence)[:, 1].astype(np.int64))
    own = logits.detach().squeeze(1).clone().requires_grad_()
    gates = own.gather(1, indices).exp()
    gates = gates / gates.sum(1, keepdim=True)
    wanted = torch.zeros_like(direction).scatter(1, indices, gates)
    (expected,) = torch.autograd.grad((wanted * direction).sum(), own)
    assert torch.allclose(probs, wanted, atol=1e-6)
    assert torch.allclose(gradient.squeeze(1), expected, atol=1e-6)


def test_recomputed_layers_take_the_experts_of_their_own_pack(experts: Path):
    packs = [make_micro_batch(routed_batch(step).sequences, step, columns=COLUMNS) for step in (4, 5)]
    gradients = []
    for recompute in ("none", "full"):
        policy, _ = load(experts, recompute)
        # As pipeline stages do: both go forward before one goes back.
        losses = [policy[0](micro, 1.0)[0].sum() for micro in packs]
        for loss in losses:
            loss.backward()
        gradients.append(dict(export_weights(policy, lambda parameter: parameter.grad)))
    stored, again = gradients
    assert all(torch.equal(again[name], tensor) for name, tensor in stored.items())


def make_replaying(folder: Path, replay: str, **sections: dict) -> Learner:
    algorithm = {"routing_replay": replay} | sections.pop("algorithm", {})
    trainer = {"learning_rate": 1e-2, "adam_epsilon": 1e-2} | sections.pop("trainer", {})
    return make_learner(folder, algorithm=algorithm, trainer=trainer, **sections)


def test_a_step_is_the_same_however_its_batch_is_split(experts: Path):
    batch = routed_batch(0)
    found = []
    for trainer in ({}, {"tokens_per_micro_batch": 30}, {"tokens_per_micro_batch": 30, "recompute": "full"}):
        learner = make_replaying(experts, "rollout", trainer=trainer)
        found.append((learner.step(batch), copy_weights(learner.model)))
    (metrics, weights), *others = found
    assert 0.9 < metrics["routing_mismatch"] <= 1.0
    for other, moved in others:
        for name in ("loss", "grad_norm", "mismatch_kl", "routing_mismatch"):
            assert other[name] == pytest.approx(metrics[name], rel=1e-5), name
        assert all((moved[name] - tensor).abs().max() < 1e-6 for name, tensor in weights.items())


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4.0}])
def test_the_reference_routes_for_itself(experts: Path, lora: dict | None):
    batch = routed_batch(1)
    learner = make_replaying(experts, "rollout", algorithm={"kl": {"coefficient": 0.1}}, model={"lora": lora})
    micro = make_micro_batch(batch.sequences, 0, columns=COLUMNS)
    (found,) = learner.part(Reference).logprobs([micro], TEMPERATURE)
    model = reference_model(experts)
    with torch.no_grad():
        wanted = torch.cat([reference_logprobs(model, one, TEMPERATURE) for one in batch.sequences])
    assert (found - wanted).abs().max() < 1e-5
    (replayed,) = learner.passes.logprobs(learner.parallel_chunks, [micro], TEMPERATURE)
    assert (replayed - wanted).abs().max() > 0.01


def test_later_optimizer_steps_take_the_experts_of_the_policy_before_the_batch(
    experts: Path, monkeypatch: pytest.MonkeyPatch
):
    batch = random_batch(1, num_groups=4)
    trainer = {"optimizer_steps_per_batch": 2, "learning_rate": 0.1}
    learner = make_replaying(experts, "proximal", trainer=trainer)
    recorded: list[list[MicroBatch]] = []

    def record(parts: list[list[MicroBatch]]) -> None:
        record_routes(parts)
        recorded.extend(parts)

    monkeypatch.setattr("asyncrl.trainer.parts.served_columns.record_routes", record)
    choices = watch_choices(learner.model)
    metrics = learner.step(batch)
    ((micro,),) = recorded
    before, after = make_learner(experts), copy_weights(learner.model)
    free = watch_choices(before.model)
    before.passes.logprobs(before.parallel_chunks, [micro.without_inputs()], 1.0)
    assert isinstance(micro.sequences.columns[ROUTES], RecordedRoutes)
    for number, passes in enumerate(choices):
        # The pass before the steps, that of the first step, that of the second.
        assert len(passes) == 3 and torch.equal(passes[0], free[number][0])
        assert torch.equal(passes[2], passes[0])
    assert metrics["routing_mismatch"] > 0.01, "the first step changed no choice"
    plain = make_learner(experts, trainer=trainer | {"adam_epsilon": 1e-2})
    plain.step(batch)
    assert any((copy_weights(plain.model)[name] - after[name]).abs().max() > 1e-4 for name in after)


def test_responses_without_routes_or_with_some_too_many_are_refused(experts: Path):
    batch, plain = routed_batch(1), random_batch(1)
    learner = make_replaying(experts, "rollout")
    with pytest.raises(InputError, match=r"has 0 bytes of routes for the \d+ positions .*_replay is rollout"):
        learner.step(plain)
    first, *others = batch.sequences
    short = with_column(first, ROUTES, first.columns[ROUTES][:-1])
    with pytest.raises(InputError, match="bytes of routes"):
        learner.step(dataclasses.replace(batch, sequences=[short, *others]))
    with pytest.raises(InputError, match="routing_replay is not rollout"):
        make_learner(experts).step(batch)


def test_an_expert_that_there_is_not_is_an_error(experts: Path):
    sequence = routed_batch(1).sequences[0]
    wrong = with_column(sequence, ROUTES, bytes([NUM_EXPERTS]) + sequence.columns[ROUTES][1:])
    policy, _ = load(experts)
    with pytest.raises(ValueError, match="routes of layer 0 name expert 8 of 8"):
        policy[0](make_micro_batch([wrong], 0, columns=COLUMNS), 1.0)
