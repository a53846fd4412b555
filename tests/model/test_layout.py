"""Which sizes go together, told before any process starts."""

import dataclasses
from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.model import dtype as device_module
from asyncrl.model.layout import Layout, check_layout, rank_environment
from asyncrl.recipe import Recipe, Trainer

# 2 layers, 4 heads, 2 key-value heads, 48 feed-forward columns
SHAPE = tiny_shape()
EXPERTS = dataclasses.replace(SHAPE, num_experts=6, experts_per_token=2, expert_ffn_size=24)


def recipe_with(num_processes: int, *, device: str = "auto", **parallel: object) -> Recipe:
    trainer = {"num_processes": num_processes, "parallel": parallel}
    return make_recipe(Path("unused"), trainer=trainer, placement={"device": device})


def test_processes_beyond_tensor_pipeline_and_context_are_data_parallel():
    layout = check_layout(recipe_with(16, tensor=2, pipeline=2, context=2), SHAPE)
    assert layout == Layout(tensor=2, pipeline=2, context=2, data=2)


@pytest.mark.parametrize(
    ("num_processes", "parallel", "message"),
    [
        (3, {"tensor": 3}, r"parallel\.tensor is 3, which does not divide the model's 4 attention heads"),
        (4, {"tensor": 4}, r"parallel\.tensor is 4, .* 2 key-value heads\. Set it to a divisor of 2"),
        (3, {"context": 3}, r"parallel\.context is 3, .* 4 attention heads per tensor rank"),
        (3, {"pipeline": 3}, r"pipeline x trainer\.parallel\.virtual_stages is 3, .* 2 layers"),
        (2, {"pipeline": 2, "virtual_stages": 2}, r"virtual_stages is 4, .* 2 layers"),
        (2, {"expert": 2}, r"parallel\.expert is 2 but Qwen3ForCausalLM has no experts"),
    ],
)
def test_a_model_that_cannot_be_cut_that_way_is_named(num_processes: int, parallel: dict, message: str):
    with pytest.raises(InputError, match=message):
        check_layout(recipe_with(num_processes, **parallel), SHAPE)


def test_experts_are_dealt_evenly_and_tensor_ranks_then_share_tokens():
    with pytest.raises(InputError, match=r"parallel\.expert is 4, .* 6 experts"):
        check_layout(recipe_with(4, expert=4), EXPERTS)
    with pytest.raises(InputError, match=r"Set trainer\.parallel\.sequence_parallel to true"):
        check_layout(recipe_with(2, tensor=2), EXPERTS)
    assert check_layout(recipe_with(4, tensor=2, sequence_parallel=True, expert=2), EXPERTS).data == 2


@pytest.mark.parametrize(
    ("num_processes", "parallel", "expected"),
    [
        (2, {}, (True, True, True)),
        (2, {"tensor": 2}, (True, False, False)),
        (2, {"context": 2}, (True, True, True)),
        (2, {"distributed_optimizer": False}, (False, False, False)),
        (2, {"overlap_grad_reduce": False}, (True, False, False)),
        (2, {"overlap_param_gather": False}, (True, True, False)),
        (2, {"distributed_optimizer": False, "overlap_grad_reduce": True}, (False, True, False)),
    ],
)
def test_on_gpus_data_parallel_ranks_overlap_messages_unless_told_otherwise(
    num_processes: int, parallel: dict, expected: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
):
    def found(device: str = "auto") -> tuple[bool, ...]:
        layout = check_layout(recipe_with(num_processes, device=device, **parallel), SHAPE)
        return layout.is_optimizer_distributed, layout.overlaps_gradients, layout.overlaps_weights

    monkeypatch.setattr(device_module, "has_gpu", lambda: True)
    assert found() == expected
    on_cpu = (False, parallel.get("overlap_grad_reduce", False), False)
    assert found("cpu") == on_cpu
    monkeypatch.setattr(device_module, "has_gpu", lambda: False)
    assert found() == on_cpu


def test_with_muon_ranks_on_gpus_share_no_optimizer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_module, "has_gpu", lambda: True)
    trainer = {"num_processes": 2, "optimizer": "muon"}
    layout = check_layout(make_recipe(Path("m"), trainer=trainer), SHAPE)
    assert (layout.is_optimizer_distributed, layout.overlaps_gradients) == (False, False)


def test_a_run_on_the_cpu_is_not_refused_for_gpus_that_cannot_be_listed(monkeypatch: pytest.MonkeyPatch):
    def has_gpu() -> bool:
        raise InputError("nvidia-smi did not answer")

    monkeypatch.setattr(device_module, "has_gpu", has_gpu)
    with pytest.raises(InputError, match="nvidia-smi did not answer"):
        check_layout(recipe_with(2), SHAPE)
    assert check_layout(recipe_with(2, device="cpu"), SHAPE) == Layout(data=2)


@pytest.mark.parametrize("missing", ["distributed_optimizer", "overlap_grad_reduce"])
def test_weights_are_gathered_during_a_pass_only_with_what_that_needs(missing: str):
    keys = {"distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    with pytest.raises(InputError, match=f"overlap_param_gather is true but trainer.parallel.{missing} is"):
        check_layout(recipe_with(2, **keys | {missing: False}), SHAPE)
    assert check_layout(recipe_with(2, **keys), SHAPE).overlaps_weights


def test_tokens_and_micro_batches_come_in_multiples_that_can_be_shared():
    layout = Layout(tensor=2, context=3, pipeline=2, virtual_stages=2, is_sequence_parallel=True)
    assert (layout.token_multiple(), layout.micro_batch_multiple()) == (6, 2)
    assert (Layout(tensor=2, pipeline=2).token_multiple(), Layout(pipeline=2).micro_batch_multiple()) == (
        1,
        1,
    )
    assert (layout.padded_vocabulary(41), layout.padded_vocabulary(42)) == (42, 42)


def test_a_rank_finds_the_others_by_its_environment_and_one_alone_needs_no_port():
    first, second = (rank_environment(Trainer(num_processes=2), rank, port=1234) for rank in range(2))
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] == "1234"
    assert "MASTER_PORT" not in rank_environment(Trainer(), 0, port=1234)
    assert rank_environment(Trainer(threads_per_process=3), 0, port=0)["OMP_NUM_THREADS"] == "3"


def test_tensor_ranks_send_kernels_to_their_gpu_in_order_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    tensor, other = (
        Trainer(num_processes=2, parallel=parallel) for parallel in ({"tensor": 2}, {"pipeline": 2})
    )
    assert rank_environment(tensor, 0, port=0)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in rank_environment(other, 0, port=0)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert rank_environment(tensor, 0, port=0)["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
