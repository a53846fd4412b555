"""Probes side by side: none can hold up or end the others. Measurements of the sandbox as lines."""

import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from asyncrl.launch.doctor.probe import Finding, Probe, State, examine, lost, ok, worst
from asyncrl.launch.doctor.software import containers, sandbox


def fails() -> list[Finding]:
    raise FileNotFoundError(2, "No such file or directory", "/proc/gone")


def test_findings_come_in_the_order_of_the_probes() -> None:
    second_first = threading.Event()

    def first() -> list[Finding]:
        assert second_first.wait(60)
        return [ok("here", what="first")]

    def second() -> list[Finding]:
        second_first.set()
        return [ok("here", what="second"), ok("here", what="third")]

    probes = [Probe("first", first, 60), Probe("second", second, 60)]
    found = list(examine(probes, waiting=lambda probe: None))
    assert [finding.what for finding in found] == ["first", "second", "third"]


def test_a_probe_that_raises_is_a_line_and_the_others_are_heard() -> None:
    probes = [Probe("limits", fails, 60), Probe("disk", lambda: [ok("here", what="disk")], 60)]
    broken, fine = examine(probes, waiting=lambda probe: None)
    assert broken.state is State.LOST and "FileNotFoundError" in broken.found and "/proc/gone" in broken.found
    assert broken.fix and fine == ok("here", what="disk")


def test_a_probe_that_hangs_is_a_line_in_its_own_state() -> None:
    forever = threading.Event()

    def hangs() -> list[Finding]:
        forever.wait()
        return []

    probes = [
        Probe("driver", hangs, 0.05, State.BROKEN),
        Probe("disk", lambda: [ok("here", what="disk")], 60),
    ]
    try:
        late, fine = examine(probes, waiting=lambda probe: None)
    finally:
        forever.set()
    assert late.state is State.BROKEN and late.found == "no answer within 0.05 s"
    assert fine == ok("here", what="disk")


def test_one_that_takes_over_a_second_is_announced_before_its_line() -> None:
    told, announced = [], threading.Event()

    def waiting(probe: Probe) -> None:
        told.append(probe.what)
        announced.set()

    def slow() -> list[Finding]:
        assert announced.wait(60)
        return [ok("here", what="hub")]

    assert list(examine([Probe("hub", slow, 60)], waiting=waiting)) == [ok("here", what="hub")]
    assert told == ["hub"]


def test_the_state_of_the_machine_is_that_of_its_worst_line() -> None:
    fine, less = ok("here", what="a"), lost("gone", "Slower.", "Buy one.")
    assert worst([]) is State.OK
    assert worst([fine, less]) is State.LOST
    assert worst([Finding("c", State.BROKEN, "gone"), less, fine]) is State.BROKEN


def layer(name: str, *, holds: bool = True, note: str = "") -> dict[str, Any]:
    return {"name": name, "holds": holds, "note": note}


def look(tier: str | None, *layers: dict[str, Any]) -> list[Finding]:
    return list(sandbox(lambda: {"tier": tier, "layers": list(layers), "gaps": ["locks"]}))


def test_a_tier_whose_layers_all_hold_is_fine() -> None:
    (found,) = look("namespaces", layer("tier namespaces"), layer("network"))
    assert found.state is State.OK and "not enforced: 1" in found.found


def test_without_a_tier_programs_are_refused() -> None:
    (found,) = look(None, layer("tier landlock", holds=False, note="Linux is too old"))
    assert found.state is State.LOST and "Linux is too old" in found.found


def test_the_lower_tier_and_each_layer_that_does_not_hold_have_lines() -> None:
    tier, disk = look(
        "landlock",
        layer("tier namespaces", holds=False, note="no user namespaces. To enable: sysctl x=1"),
        layer("tier landlock"),
        layer("disk", holds=False, note="open"),
    )
    assert tier.state is State.LOST and tier.fix == "sysctl x=1"
    assert disk.found == "disk: open"


def engine_line(there: str | None, returncode: int = 0, stderr: str = "") -> Finding:
    def ask(command: Sequence[str], *, seconds: float) -> subprocess.CompletedProcess[str]:
        assert command == [there, "info"]
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    return containers(lambda name: name if name == there else None, ask)


def test_containers_need_an_engine_that_answers() -> None:
    assert engine_line("docker").state is State.OK
    assert engine_line(None).found == "neither podman nor docker"
    silent = engine_line("docker", 1, "warning\nCannot connect to the Docker daemon\n")
    assert silent.state is State.LOST and silent.found.endswith("Cannot connect to the Docker daemon")
