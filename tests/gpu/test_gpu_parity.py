"""One GPU in bfloat16 against transformers in float32 on the CPU, with whatever kernels are installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.checked_device import DEVICE, is_there, of_cuda_alone
from fakes.models import random_batch, reference_logprobs, reference_model, write_model
from fakes.recipes import make_recipe

from asyncrl.serving.tensor_digest import tensor_digest
from asyncrl.system.machine import has_transformer_engine
from asyncrl.trainer.publishing.host_weights import digests_of

pytestmark = [pytest.mark.gpu, is_there]

# Tensor cores want multiples of 16.
SIZES = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 128, "vocab_size": 96}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
MODELS = {
    "qwen3": ("Qwen3", SIZES),
    "tied": ("Qwen2", {**SIZES, "head_dim": None, "tie_word_embeddings": True}),
    "llama": ("Llama", SIZES),
    "experts": ("Qwen3Moe", SIZES | EXPERTS),
}


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    from asyncrl.trainer.ranks import ranks

    ranks.start(threads=1, seed=0)
    yield
    ranks.stop()


def make_learner(folder: Path, dtype: str, **trainer: object):
    from asyncrl.model.folder import check_model_folder
    from asyncrl.trainer.parts.table import build_learner

    recipe = make_recipe(folder, trainer=trainer, model={"dtype": dtype})
    learner = build_learner(check_model_folder(folder), recipe)
    learner.load_base()
    return learner


def write(folder: Path, name: str) -> Path:
    family, sizes = MODELS[name]
    return write_model(folder, family, **{key: value for key, value in sizes.items() if value is not None})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.15)])
def test_log_probs_are_those_of_transformers(name: str, dtype: str, tolerance: float, tmp_path: Path):
    from asyncrl.trainer.packing.batch import make_micro_batch

    folder = write(tmp_path, name)
    batch = random_batch(1, longest=40, temperature=0.7)
    micro = make_micro_batch(batch.sequences, 1).to(DEVICE)
    model = make_learner(folder, dtype).parallel_chunks[0]
    with torch.no_grad():
        logprobs, _ = model(micro, 0.7)
        reference = reference_model(folder)
        expected = torch.cat([reference_logprobs(reference, s, 0.7) for s in batch.sequences])
    assert expected.std() > 0.5, "logits of this model are too flat to test anything"
    difference = (logprobs.cpu() - expected).abs()
    # A few tokens of a bfloat16 model of experts may be sent to another expert.
    assert difference.median() < tolerance / 3
    assert difference.max() < tolerance or name == "experts"


@of_cuda_alone
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["flash_attn", "transformer_engine", "torch_varlen", "sdpa"])
def test_an_attention_kernel_gives_the_formulas_numbers(name: str, dtype: torch.dtype):
    from asyncrl.errors import InputError
    from asyncrl.trainer.packing.attention_kernels import Heads, find_kernel

    # `find_kernel` compares outputs and gradients; a package that is not installed is no failure of ours.
    try:
        assert find_kernel(name, torch.device("cuda"), Heads(16, 8, 128, dtype)) == name
    except InputError as refusal:
        if "differ from the formula's" in str(refusal) or name == "sdpa":
            raise
        pytest.skip(str(refusal))


def test_gradients_of_a_row_picked_often_are_summed_in_float32():
    from asyncrl.trainer.packing.attention import pick_rows

    # A sum of halves in bfloat16 stays at 128, where its next number is 1 away.
    rows = torch.zeros(2, 8, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    picked = pick_rows(rows, torch.zeros(300, dtype=torch.int64, device=DEVICE))
    picked.backward(torch.full((300, 8), 0.5, dtype=torch.bfloat16, device=DEVICE))
    assert rows.grad.tolist() == [[150.0] * 8, [0.0] * 8]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_deterministic_steps_are_the_same_to_the_last_digit(dtype: str, tmp_path: Path):
    command = [sys.executable, "-m", "fakes.deterministic_steps", str(write(tmp_path, "qwen3")), dtype, "96"]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    first, second = (
        subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout for _ in range(2)
    )
    assert json.loads(first.splitlines()[-1]) == json.loads(second.splitlines()[-1])


@of_cuda_alone
@pytest.mark.skipif(has_transformer_engine(), reason="Transformer Engine has norms of its own")
def test_a_norm_is_one_kernel(tmp_path: Path):
    learner = make_learner(write(tmp_path, "qwen3"), "bfloat16")
    with torch.profiler.profile() as profile:
        learner.step(random_batch(0, vocabulary=96))
    assert "aten::_fused_rms_norm" in {event.key for event in profile.key_averages()}


@of_cuda_alone
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_math_kernel_never_runs(dtype: str, tmp_path: Path):
    learner = make_learner(write(tmp_path, "qwen3"), dtype)
    with torch.profiler.profile() as profile:
        learner.step(random_batch(0, vocabulary=96))
    names = [event.key for event in profile.key_averages()]
    assert not [name for name in names if "attention_math" in name]


@pytest.mark.parametrize("name", MODELS)
def test_weights_return_bit_for_bit(name: str, tmp_path: Path):
    from asyncrl.trainer.network.convert import export_weights

    folder = write(tmp_path, name)
    wanted = safetensors.torch.load_file(folder / "model.safetensors")
    got = dict(export_weights(make_learner(folder, "bfloat16").model))
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[key].cpu(), tensor.bfloat16()) for key, tensor in wanted.items())


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("is_distributed", [False, True])
def test_bfloat16_steps_follow_float32_steps(recompute: str, is_distributed: bool, tmp_path: Path):
    folder = write(tmp_path, "qwen3")
    exact = make_learner(folder, "float32", learning_rate=1e-3)
    parallel = {"distributed_optimizer": is_distributed}
    learner = make_learner(folder, "bfloat16", learning_rate=1e-3, recompute=recompute, parallel=parallel)
    for step in range(3):
        batch = random_batch(step, vocabulary=96)
        got, wanted = learner.step(batch), exact.step(batch)
        assert got["num_tokens"] == wanted["num_tokens"]
        assert got["loss"] == pytest.approx(wanted["loss"], abs=0.05)
        assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.2)


@pytest.mark.skipif(not has_transformer_engine(), reason="needs Transformer Engine's Adam")
@pytest.mark.parametrize(
    "options",
    [
        {"exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"},
        {"optimizer_cpu_offload": True},
    ],
)
def test_adams_states_in_bfloat16_or_on_the_host_change_steps_little_and_survive_a_checkpoint(
    options: dict, tmp_path: Path
):
    from asyncrl.trainer.checkpoints.checkpoint import Checkpoints

    folder = write(tmp_path / "model", "qwen3")
    parallel = {"distributed_optimizer": True}
    plain = make_learner(folder, "bfloat16", learning_rate=1e-3, parallel=parallel)
    learner = make_learner(folder, "bfloat16", learning_rate=1e-3, parallel=parallel, **options)
    for step in range(2):
        got, wanted = (each.step(random_batch(step, vocabulary=96)) for each in (learner, plain))
        assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.05)
    Checkpoints(tmp_path / "checkpoints", num_kept=1).save(learner, 2)
    resumed = make_learner(folder, "bfloat16", learning_rate=1e-3, parallel=parallel, **options)
    assert Checkpoints(tmp_path / "checkpoints", num_kept=1).load_newest(resumed) == 2
    found, expected = (each.step(random_batch(2, vocabulary=96)) for each in (resumed, learner))
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)


@of_cuda_alone
def test_chunks_of_a_large_vocabulary_give_the_whole_ones_values_and_gradients(monkeypatch):
    from asyncrl.trainer.network import logprobs
    from asyncrl.trainer.network.output_kernels import token_logprobs

    monkeypatch.setattr(logprobs, "GPU_LOGITS_AT_ONCE", 2**26)

    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(1500, 64, device="cuda", generator=generator, requires_grad=True)
    weight = (torch.randn(151_936, 64, device="cuda", generator=generator) / 8).requires_grad_()
    targets = torch.randint(0, 151_936, (1500,), device="cuda", generator=generator)
    assert len(hidden) * len(weight) > logprobs.LOGITS_AT_ONCE
    got = logprobs.output_logprobs(hidden, weight, targets, 0.9, vocab_size=len(weight))
    wanted = token_logprobs(hidden @ weight.t(), targets, 0.9)
    directions = torch.randn(2, 1500, device="cuda", generator=generator)
    for left, right in zip(got, wanted, strict=True):
        assert (left - right).abs().max() < 1e-3
    slopes, expected = (
        torch.autograd.grad(values, (hidden, weight), tuple(directions)) for values in (got, wanted)
    )
    for left, right in zip(slopes, expected, strict=True):
        assert (left - right).abs().max() < 1e-2 * right.abs().max()


@of_cuda_alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_added_unrounded_to_megatrons_gradient(dtype: torch.dtype):
    from asyncrl.trainer.network.logprobs import WeightGradient

    generator = torch.Generator("cuda").manual_seed(0)
    slopes, hidden = (torch.randn(300, n, device="cuda", generator=generator).to(dtype) for n in (96, 64))
    weight = torch.nn.Parameter(torch.zeros(100, 64, device="cuda", dtype=dtype))
    weight.main_grad = torch.full((100, 64), 0.5, device="cuda")
    weight.grad_added_to_main_grad = False
    gradient = WeightGradient(weight, 96, num_chunks=2)
    for part in (slice(0, 200), slice(200, 300)):
        gradient.add(slopes[part], hidden[part])
    assert gradient.result().shape == weight.shape and weight.grad_added_to_main_grad
    exact = slopes.double().t() @ hidden.double() + 0.5
    assert (weight.main_grad[:96] - exact).abs().max() < 2e-3
    assert weight.main_grad[96:].eq(0.5).all()


@of_cuda_alone
def test_digests_are_sglangs_hash_on_cuda_and_another_one_on_a_cpu():
    from sglang.kernels.ops.memory.gpu_tensor_hash import gpu_tensor_hash

    weights = {"a": torch.randn(64, 32).bfloat16(), "b": torch.randn(32)}
    there = {name: tensor.cuda() for name, tensor in weights.items()}
    assert digests_of(there) == {name: f"{gpu_tensor_hash(t):016x}" for name, t in there.items()}
    # Of the bytes, whatever the strides.
    assert tensor_digest(there["a"].t().contiguous().t()) == tensor_digest(there["a"])
    assert not set(digests_of(there).values()) & set(digests_of(weights).values())
    # In a bucket, behind a tensor of 2 bytes.
    bucket = torch.cat([there["a"].new_zeros(1), there["a"].view(-1)])
    assert tensor_digest(bucket[1:]) == tensor_digest(there["a"])
    there["a"][0, 0] += 1.0
    assert digests_of(there)["a"] != f"{gpu_tensor_hash(weights['a'].cuda()):016x}"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_float32_logits_are_products_of_bfloat16_that_are_not_rounded(temperature: float):
    from asyncrl.trainer.network.logprobs import output_logprobs
    from asyncrl.trainer.network.output_kernels import token_logprobs

    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=generator).bfloat16() for rows in (11, 96))
    targets = torch.randint(0, 96, (11,), generator=generator)
    exact, _ = token_logprobs(hidden.double() @ weight.double().t(), targets, temperature)
    leaves = [tensor.to(DEVICE).requires_grad_() for tensor in (hidden, weight)]
    found, entropies = output_logprobs(
        *leaves, targets.to(DEVICE), temperature, vocab_size=96, float32_logits=True
    )
    assert found.dtype is torch.float32 and (found.cpu() - exact).abs().max() < 1e-4
    slopes = torch.autograd.grad(found.sum() + entropies.sum(), leaves)
    assert all(slope.dtype is torch.bfloat16 and slope.isfinite().all() for slope in slopes)
