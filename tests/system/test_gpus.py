"""Which GPUs a process may use, by a fake nvidia-smi and whatever CUDA_VISIBLE_DEVICES a scheduler set."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fakes.gpus import H100, row, uuid_of, write_nvidia_smi

from asyncrl.errors import InputError
from asyncrl.system.gpus import Gpu, find_gpus, hides_all
from asyncrl.system.machine import has_gpu

Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Puts a fake nvidia-smi on the PATH; returns the folder that stands for /dev."""

    def make(rows: Sequence[str], variable: str | None = None, **options: object) -> Path:
        write_nvidia_smi(tmp_path / "bin", rows, **options)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if variable is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
        devices = tmp_path / "dev"
        devices.mkdir(exist_ok=True)
        for index in range(len(rows)):
            (devices / f"nvidia{index}").touch()
        return devices

    return make


FOUR = [row(index) for index in range(4)]


def test_without_the_variable_all_are_visible_in_the_order_of_nvidia_smi(machine: Machine) -> None:
    found = find_gpus(devices=machine(FOUR))
    assert found[2] == Gpu(2, "2", H100, 81559)
    assert [gpu.device for gpu in found] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        ("3,1", ["3", "1"]),
        (" 2 ", ["2"]),
        (f"{uuid_of(3)},{uuid_of(0)}", ["3", "0"]),
        ("GPU-00000002", ["2"]),
        ("1,-1,2", ["1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_a_schedulers_choice_is_kept_with_its_order(
    machine: Machine, variable: str, devices: list[str]
) -> None:
    found = find_gpus(devices=machine(FOUR, variable))
    assert [gpu.device for gpu in found] == devices
    assert [gpu.number for gpu in found] == list(range(len(devices)))
    assert hides_all() == (devices == [])


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("0,7", "names 7, which is no GPU of this machine"),
        ("GPU-ffff", "names GPU-ffff, which is no GPU"),
        ("GPU-0000000", "which is several GPUs of this machine"),
        ("1,1", "it names 1 twice"),
        (f"1,{uuid_of(1)}", "it names 1 twice"),
        ("one", "names one, which is no GPU"),
    ],
)
def test_what_cuda_would_leave_out_in_silence_is_refused(machine: Machine, variable: str, said: str) -> None:
    devices = machine(FOUR, variable)
    with pytest.raises(InputError, match=said):
        find_gpus(devices=devices)


def test_a_divided_gpu_is_refused_where_it_would_be_used(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = machine([row(0, mig="Enabled"), row(1, mig="[N/A]", memory="[N/A]")])
    with pytest.raises(InputError, match=r"GPU 0 is divided into slices \(MIG\)"):
        find_gpus(devices=devices)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_gpus(devices=devices) == (Gpu(0, "1", H100, None),)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1111aaaa")
    with pytest.raises(InputError, match=r"names MIG-1111aaaa, which is no GPU .* slices \(MIG\) are not"):
        find_gpus(devices=devices)


def test_a_machine_without_a_driver_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert find_gpus(devices=tmp_path) == ()
    # Left over in somebody's shell.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert find_gpus(devices=tmp_path) == () and not hides_all()


def test_a_gpu_that_cannot_be_listed_is_refused_with_the_ways_out(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mismatch = "Failed to initialize NVML: Driver/library version mismatch"
    devices = machine(FOUR, exit_code=18, said=mismatch)
    with pytest.raises(InputError, match=rf"exit code 18: {mismatch}.*placement\.device to cpu"):
        find_gpus(devices=devices)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"nvidia0\), but nvidia-smi, .* is not on the PATH"):
        find_gpus(devices=devices)
    # Whoever hides the GPUs needs no nvidia-smi.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus(devices=devices) == ()


def test_tools_without_a_gpu_are_no_gpu(machine: Machine, tmp_path: Path) -> None:
    machine([], exit_code=9, said="NVIDIA-SMI has failed because it couldn't communicate with the driver")
    assert find_gpus(devices=tmp_path / "dev") == ()


def test_an_answer_of_another_kind_is_refused(machine: Machine) -> None:
    devices = machine(["0, too, few"])
    with pytest.raises(InputError, match=r"printed '0, too, few', expected index, uuid"):
        find_gpus(devices=devices)


def test_nvidia_smi_is_asked_once_per_process(machine: Machine, tmp_path: Path) -> None:
    devices = machine(FOUR)
    assert find_gpus(devices=devices) == find_gpus(devices=devices)
    assert len((tmp_path / "bin" / "calls").read_text().splitlines()) == 1


@pytest.mark.parametrize(("version", "expected"), [("2.13.0+cpu", False), ("2.14.1", True)])
def test_a_gpu_counts_only_where_torch_can_use_it(
    machine: Machine, version: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(FOUR)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert has_gpu() is expected
