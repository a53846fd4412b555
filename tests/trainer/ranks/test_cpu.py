import pytest
import torch

from asyncrl.trainer.ranks import cpu


def test_nothing_is_touched_where_cuda_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "_is_installed", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    touched = []
    for name in ("_use_no_compiler", "_replace_literal_devices", "_replace_random_state"):
        monkeypatch.setattr(cpu, name, lambda name=name: touched.append(name))
    cpu.install()
    assert not touched and not cpu._is_installed


def test_megatrons_hard_coded_devices_are_the_cpu_and_torch_itself_is_not_changed():
    from megatron.core.pipeline_parallel import schedules

    assert torch.cuda.current_device() == torch.device("cpu")
    assert schedules.torch.zeros(2, device="cuda").device == torch.device("cpu")
    assert schedules.torch is not torch
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_tensor_types_say_cuda_only_while_megatron_compares_them():
    tensor = torch.zeros(1)
    with cpu._cuda_type_names():
        assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.type() == "torch.FloatTensor"
