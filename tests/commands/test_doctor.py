"""`asyncrl doctor` on this machine, for real, and what it makes of findings."""

import json

import pytest
from fakes.commands import Command

from asyncrl.commands import doctor
from asyncrl.commands import main as cli
from asyncrl.launch.doctor.probe import Finding, Probe, broken, lost, ok


def with_findings(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(doctor, "probes", lambda: [Probe("all", lambda: findings, 60)])


def test_it_looks_at_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test asks nothing of the world.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = cli.main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == (said["state"] == "broken")
    names = {finding["what"] for finding in said["findings"]}
    assert {probe.what for probe in doctor.probes()} <= names
    assert not [each for each in said["findings"] if "could not be looked at" in each["found"]]
    # Where something is lost, the consequence and the fix stand beside it.
    for finding in said["findings"]:
        has_advice = bool(finding["consequence"]) and bool(finding["fix"])
        assert has_advice is (finding["state"] != "ok"), finding


def test_the_exit_code_is_one_where_something_is_broken(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_findings(monkeypatch, ok("fine", what="cpu"), lost("none", "It is slower.", "Buy one.", what="amx"))
    out = command("doctor").out
    assert out.splitlines() == [
        "ok      cpu              fine",
        "lost    amx              none",
        "                         It is slower.",
        "                         Buy one.",
        "1 ok, 1 lost, 0 broken",
    ]
    with_findings(monkeypatch, broken("none", "No run starts.", "Free some.", what="ports"))
    command("doctor", code=1)
