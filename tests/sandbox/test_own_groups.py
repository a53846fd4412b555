"""A process may use the cores of its affinity, or the time that a control group around it allows."""

import os
from pathlib import Path

import pytest

from sandbox.own_groups import available_cores


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def cores(folder: Path, line: str, files: dict[str, str]) -> int:
    own = folder / "own"
    own.write_text(f"{line}\n")
    for name, text in files.items():
        file = folder / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return available_cores(own, folder / "mounted")


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("400000 100000", 4),
        ("max 100000", 16),
        # Never more runs at once than there is time for, and never none.
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("6400000 100000", 16),
        ("nonsense", 16),
    ],
)
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, quota: str, expected: int) -> None:
    assert cores(tmp_path, "0::/", {"cpu.max": quota}) == expected


def test_the_tightest_group_around_a_process_counts(tmp_path: Path) -> None:
    files = {"job/step/cpu.max": "max 100000", "job/cpu.max": "300000 100000", "cpu.max": "800000 100000"}
    assert cores(tmp_path, "0::/job/step", files) == 3


@pytest.mark.parametrize(("quota", "expected"), [("200000", 2), ("-1", 16)])
def test_the_first_version_of_control_groups_bounds_as_well(
    tmp_path: Path, quota: str, expected: int
) -> None:
    files = {"cpu/job/cpu.cfs_quota_us": quota, "cpu/job/cpu.cfs_period_us": "100000"}
    assert cores(tmp_path, "3:cpu,cpuacct:/job", files) == expected


def test_without_control_groups_affinity_decides(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "missing", tmp_path) == 16
