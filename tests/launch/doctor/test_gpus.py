"""GPUs, driver, CUDA and NCCL of machines that a test makes up."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakes.gpus import whole_gpus

from asyncrl.errors import InputError
from asyncrl.launch.doctor import gpus as probe
from asyncrl.launch.doctor.probe import Finding, State
from asyncrl.system.gpus import Gpu

FREE = {"0": 80 * 2**30, "1": 80 * 2**30}


def look(
    found: Sequence[Gpu], *, is_cpu_build: bool, hides: bool = False, free: dict[str, int] = FREE
) -> list[Finding]:
    return list(
        probe.gpus(lambda: found, is_cpu_build=lambda: is_cpu_build, hides=lambda: hides, free=lambda: free)
    )


def test_a_machine_without_gpus_wants_the_build_for_cpus() -> None:
    (fine,) = look([], is_cpu_build=True)
    assert fine.state is State.OK
    (other,) = look([], is_cpu_build=False)
    assert other.state is State.LOST and "make setup" in other.fix
    (hidden,) = look([], is_cpu_build=False, hides=True)
    assert hidden.fix == "Unset CUDA_VISIBLE_DEVICES."


def test_a_build_for_cpus_on_a_machine_with_gpus_is_broken() -> None:
    (found,) = look(whole_gpus(2), is_cpu_build=True)
    assert found.state is State.BROKEN and "make setup GPU=1" in found.fix
    (fine,) = look(whole_gpus(2), is_cpu_build=False)
    assert fine.state is State.OK and fine.found.startswith("2 visible: NVIDIA H100 80GB HBM3, 80 GiB each")


def test_a_gpu_that_other_programs_use_is_named() -> None:
    _, busy = look(whole_gpus(2), is_cpu_build=False, free={"0": 80 * 2**30, "1": 2**30})
    assert (busy.what, busy.state) == ("gpu 1", State.LOST)


def test_gpus_that_cannot_be_listed_are_broken() -> None:
    def fails() -> Sequence[Gpu]:
        raise InputError("nvidia-smi did not answer within 60 s. Correct that.")

    (found,) = probe.gpus(fails)
    assert (found.state, found.fix) == (State.BROKEN, "Correct that.")
    # It is said once.
    (cuda,) = probe.cuda(fails)
    assert cuda.state is State.OK


ANSWER = {
    "cuda": "13.0",
    "is_available": True,
    "count": 2,
    "capabilities": [[9, 0], [9, 0]],
    "nccl": [2, 28, 9],
    "peers": [True],
}


def cuda(
    *, driver: str | None = "580.65.06", missing: str | None = None, **answer: Any
) -> dict[str, Finding]:
    found = probe.cuda(
        lambda: whole_gpus(2),
        is_cpu_build=lambda: False,
        driver=lambda: driver,
        ask=lambda: ANSWER | answer,
        compilers=lambda: missing,
    )
    return {finding.what or "cuda": finding for finding in found}


def test_a_machine_with_all_of_it_has_a_line_for_each() -> None:
    found = cuda()
    assert list(found) == ["driver", "compilers", "cuda", "nccl"]
    assert {finding.state for finding in found.values()} == {State.OK}
    assert found["nccl"].found == "2.28.9, GPUs reach each other's memory"


@pytest.mark.parametrize(
    ("change", "what", "state"),
    [
        ({"driver": "570.10"}, "driver", State.BROKEN),
        ({"driver": None}, "driver", State.LOST),
        ({"missing": "no C++ compiler (c++) is on PATH: install g++, or set CXX"}, "compilers", State.BROKEN),
        ({"is_available": False}, "cuda", State.BROKEN),
        ({"count": 1, "capabilities": [[9, 0]], "peers": []}, "cuda", State.BROKEN),
        ({"capabilities": [[7, 5], [9, 0]]}, "cuda", State.LOST),
        ({"nccl": None}, "nccl", State.BROKEN),
        ({"peers": [False]}, "nccl", State.LOST),
    ],
)
def test_each_part_that_is_missing_has_its_consequence(
    change: dict[str, Any], what: str, state: State
) -> None:
    found = cuda(**change)[what]
    assert found.state is state and found.consequence and found.fix


def test_a_machine_without_gpus_needs_none_of_it() -> None:
    (found,) = probe.cuda(lambda: ())
    assert found.state is State.OK
