"""Probes side by side: none can hold up or end the others."""

import threading

from asyncrl.launch.doctor.probe import Finding, Probe, State, examine, lost, ok, worst


def fails() -> list[Finding]:
    raise FileNotFoundError(2, "No such file or directory", "/proc/gone")


def test_findings_come_in_the_order_of_the_probes() -> None:
    second_first = threading.Event()

    def first() -> list[Finding]:
        assert second_first.wait(60)
        return [ok("first", "here")]

    def second() -> list[Finding]:
        second_first.set()
        return [ok("second", "here"), ok("third", "here")]

    probes = [Probe("first", first, 60), Probe("second", second, 60)]
    found = list(examine(probes, waiting=lambda probe: None))
    assert [finding.what for finding in found] == ["first", "second", "third"]


def test_a_probe_that_raises_is_a_line_and_the_others_are_heard() -> None:
    probes = [Probe("limits", fails, 60), Probe("disk", lambda: [ok("disk", "here")], 60)]
    broken, fine = examine(probes, waiting=lambda probe: None)
    assert broken.state is State.LOST and "FileNotFoundError" in broken.found and "/proc/gone" in broken.found
    assert broken.fix and fine == ok("disk", "here")


def test_a_probe_that_hangs_is_a_line_in_its_own_state() -> None:
    forever = threading.Event()

    def hangs() -> list[Finding]:
        forever.wait()
        return []

    probes = [Probe("driver", hangs, 0.05, State.BROKEN), Probe("disk", lambda: [ok("disk", "here")], 60)]
    try:
        late, fine = examine(probes, waiting=lambda probe: None)
    finally:
        forever.set()
    assert late.state is State.BROKEN and late.found == "no answer within 0.05 s"
    assert fine == ok("disk", "here")


def test_one_that_takes_over_a_second_is_announced_before_its_line() -> None:
    told, announced = [], threading.Event()

    def waiting(probe: Probe) -> None:
        told.append(probe.what)
        announced.set()

    def slow() -> list[Finding]:
        assert announced.wait(60)
        return [ok("hub", "here")]

    assert list(examine([Probe("hub", slow, 60)], waiting=waiting)) == [ok("hub", "here")]
    assert told == ["hub"]


def test_the_state_of_the_machine_is_that_of_its_worst_line() -> None:
    fine, less = ok("a", "here"), lost("b", "gone", "Slower.", "Buy one.")
    assert worst([]) is State.OK
    assert worst([fine, less]) is State.LOST
    assert worst([Finding("c", State.BROKEN, "gone"), less, fine]) is State.BROKEN
