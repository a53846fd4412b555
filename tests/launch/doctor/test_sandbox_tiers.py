"""Measurements of the sandbox's own doctor, as lines."""

from typing import Any

from asyncrl.launch.doctor.catalog import sandbox
from asyncrl.launch.doctor.probe import Finding, State


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
