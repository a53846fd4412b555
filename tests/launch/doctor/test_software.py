"""Packages against pins and locks, as they are and as they could be."""

from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.launch.doctor import software
from asyncrl.launch.doctor.probe import State

HERE = {"sglang": "0.5.23", "torch": "2.13.0+cpu", "transformers": "5.19.0", "megatron-core": "0.16.1"}


def test_what_is_installed_here_is_what_is_pinned_and_locked() -> None:
    for look in (software.owners, software.pins):
        found = look()
        assert found.state is State.OK, found
    lock = software.lock_file()
    assert lock is not None and lock.name == "cpu.lock"


def test_another_version_of_an_engine_is_broken() -> None:
    def pins(**versions: str | None) -> State:
        finding = software.pins(
            lambda: ["sglang==0.5.23", "torch>=2.13", 'ray==2.60.0; extra == "ray"'],
            version_of=lambda name: (HERE | versions).get(name),
        )
        return finding.state

    assert pins() is State.OK
    assert pins(sglang="0.5.24") is State.BROKEN
    assert pins(sglang=None) is State.BROKEN
    assert pins(torch="2.12.1") is State.BROKEN


def test_differences_from_the_lock_are_named_and_local_versions_are_none(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.lock"
    lock.write_text(
        '# a comment\ntorch==2.13.0\nsglang==0.5.23 --hash=sha256:00\nold==1; python_version < "3.0"\n'
    )
    fine = software.locked(lambda: lock, version_of=HERE.get)
    assert (fine.state, fine.found) == (State.OK, "all 2 of cpu.lock")
    other = software.locked(lambda: lock, version_of={"torch": "2.13.1"}.get)
    assert other.state is State.LOST
    assert "torch 2.13.1 (lock: 2.13.0), sglang is missing (0.5.23)" in other.found
    wheel = software.locked(lambda: None)
    assert wheel.state is State.OK


def test_another_distribution_that_owns_a_package_of_asyncrl_is_broken() -> None:
    def theirs() -> None:
        raise InputError('"import verifiers" finds another one. Install asyncrl in a separate environment.')

    found = software.owners([theirs])
    assert found.state is State.BROKEN and found.fix == "Install asyncrl in a separate environment."
