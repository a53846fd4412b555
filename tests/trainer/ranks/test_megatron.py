"""A trainer imports Megatron without W&B, torch's compiler and Transformer Engine; its adapters to a CPU and
its specs."""

import functools
import subprocess
import sys

import pytest
import torch
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec

from asyncrl.trainer.ranks import megatron
from asyncrl.trainer.ranks.megatron import import_megatron, parts_of

CODE = """
import sys, torch
from asyncrl.trainer.ranks.megatron import import_megatron
before = torch.compile
import_megatron()
heavy = ("wandb", "torch._dynamo", "torch._inductor.compile_fx", "sglang", "transformers", "ray")
print([name for name in heavy if name in sys.modules], torch.compile is before)
"""


def test_neither_trackers_nor_the_compiler_are_imported_with_megatron() -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=False
    )
    assert found.stdout == "[] True\n", found.stderr


def test_routers_start_without_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe import moe_utils

    # As Megatron-core 0.16.1 leaves it.
    monkeypatch.delattr(moe_utils, "te_general_gemm")
    import_megatron()
    tokens, weight = torch.randn(5, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    logits = moe_utils.router_gating_linear(tokens, weight, None, torch.float32)
    logits.sum().backward()
    torch.testing.assert_close(logits, tokens @ weight.T)
    torch.testing.assert_close(weight.grad, tokens.detach().sum(0).expand(3, 8))


def test_nothing_is_touched_where_cuda_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(megatron, "_is_installed", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    touched = []
    for name in ("_use_no_compiler", "_replace_literal_devices", "_replace_random_state"):
        monkeypatch.setattr(megatron, name, lambda name=name: touched.append(name))
    megatron.run_on_cpu()
    assert not touched and not megatron._is_installed


def test_megatrons_hard_coded_devices_are_the_cpu_and_torch_itself_is_not_changed():
    from megatron.core.pipeline_parallel import schedules

    assert torch.cuda.current_device() == torch.device("cpu")
    assert schedules.torch.zeros(2, device="cuda").device == torch.device("cpu")
    assert schedules.torch is not torch
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_tensor_types_say_cuda_only_while_megatron_compares_them():
    tensor = torch.zeros(1)
    with megatron._cuda_type_names():
        assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.type() == "torch.FloatTensor"


PARTS = MLPSubmodules(linear_fc1=object, linear_fc2=object)


@pytest.mark.parametrize(
    "spec", [ModuleSpec(MLP, submodules=PARTS), functools.partial(MLP, submodules=PARTS)]
)
def test_the_parts_of_a_spec_are_those_that_a_layer_is_built_from(spec: object) -> None:
    parts_of(spec).linear_fc1 = dict
    assert PARTS.linear_fc1 is dict
