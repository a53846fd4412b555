"""`asyncrl sandbox doctor`, as a user would type it."""

import argparse

import pytest

from asyncrl.commands import main as cli
from asyncrl.commands import sandbox as command
from sandbox.doctor import gaps
from sandbox.result import Tier


def call(capsys, *words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code = command.run(parser.parse_args(list(words)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_bad_input_ends_with_two_and_one_sentence(capsys):
    assert cli.main(["sandbox", "doctor", "--python", "/no/python"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("asyncrl sandbox: ") and err.splitlines()[1:] == ["Read: docs/sandbox.md"]


def test_the_doctor_names_a_tier_and_tries_every_layer(capsys):
    code, out, _ = call(capsys, "doctor")
    assert code == 0
    for layer in (
        "tier",
        "network",
        "host files",
        "host processes",
        "system calls",
        "privileges",
        "disk",
        "processes",
    ):
        assert layer in out
    named = out.count("not enforced here: ")
    assert named and out.splitlines()[-1].endswith(f" {named} things are not enforced here.")


@pytest.mark.parametrize(("tier", "controllers", "shared", "named", "absent"), [
    (Tier.NAMESPACES, ("memory", "pids"), False, "advisory read locks", "disk"),
    (Tier.NAMESPACES, (), True, "memory of all processes", "disk"),
    (Tier.LANDLOCK, ("memory", "pids"), False, "disk: sampled", "number of processes"),
    (Tier.LANDLOCK, (), True, "a number of processes for each run", "reads back"),
    (Tier.UNSAFE, (), True, "isolates nothing", "disk"),
])  # fmt: skip
def test_what_is_not_enforced_depends_on_the_tier_the_user_and_the_cgroups(
    tier, controllers, shared, named, absent
):
    text = "\n".join(gaps(tier, controllers, shares_user=shared))
    assert named in text and absent not in text
