"""What is known to be wrong before anything starts; the sentences are in tests/newcomer."""

from pathlib import Path

from asyncrl.launch.preflight import unused_gpu


def test_a_build_for_cpus_on_a_machine_with_a_gpu_is_said_and_nothing_else_is(tmp_path: Path) -> None:
    assert unused_gpu(devices=tmp_path, torch_version="2.13.0+cpu") is None
    (tmp_path / "nvidiactl").touch()
    assert unused_gpu(devices=tmp_path, torch_version="2.13.0+cpu") is None
    (tmp_path / "nvidia0").touch()
    warning = unused_gpu(devices=tmp_path, torch_version="2.13.0+cpu")
    assert warning is not None
    assert f"NVIDIA GPU ({tmp_path}/nvidia0), but torch 2.13.0+cpu is a build for CPUs" in warning
    assert unused_gpu(devices=tmp_path, torch_version="2.13.0+cu130") is None
