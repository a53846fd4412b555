"""Limits, commands, settings, messages and the command line: bad ones are refused before anything runs."""

import argparse
import io

import pytest

from asyncrl.commands import main as cli
from asyncrl.commands import sandbox as command
from sandbox import frames
from sandbox.command import LANGUAGES, Command, Limits, find_language, parse_limits
from sandbox.doctor import gaps
from sandbox.result import Tier
from sandbox.settings import SandboxSettings


def test_limits_are_read_in_bytes_or_mebibytes():
    limits = parse_limits({"wall_seconds": 3, "memory_mb": 64, "disk_bytes": 5}, Limits())
    assert (limits.wall_seconds, limits.memory_bytes, limits.disk_bytes) == (3, 64 << 20, 5)
    assert limits.processes == Limits().processes


@pytest.mark.parametrize(
    "raw",
    [
        {"wall": 1},
        {"memory_mb": -1},
        {"processes": 1.5},
        {"cpu_seconds": True},
        5,
        {"cpu_seconds": "3"},
        {"memory_mb": None},
        {"wall_seconds": float("nan")},
    ],
)
def test_bad_limits_are_refused_by_name(raw):
    with pytest.raises(ValueError, match="limit"):
        parse_limits(raw, Limits())


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".", "a/b", "a\0b", "x" * 300])
def test_files_of_a_box_have_plain_names(name):
    with pytest.raises(ValueError, match="not a plain name"):
        Command(("true",), files=((name, b""),))
    with pytest.raises(ValueError, match="not a plain name"):
        Command(("true",), collect=(name,))


def test_a_command_has_words_without_nul():
    with pytest.raises(ValueError, match="empty"):
        Command(())
    with pytest.raises(ValueError, match="NUL"):
        Command(("a\0b",))


def test_languages_are_found_by_their_usual_names():
    assert find_language("C++") is LANGUAGES["cpp"]
    assert find_language("py") is LANGUAGES["python"]
    with pytest.raises(ValueError, match="'cobol' is unknown; expected one of bash, c, cpp, python"):
        find_language("cobol")


def test_the_unsafe_tier_must_be_asked_for_twice():
    with pytest.raises(ValueError, match="allow_unsafe"):
        SandboxSettings(tiers=(Tier.UNSAFE,))


def test_a_message_comes_back_as_it_went():
    packed = frames.pack({"a": 1}, [b"x" * 10, b"", b"\0\xff"])
    stream = io.BytesIO(packed)
    assert frames.receive(stream.read) == ({"a": 1}, [b"x" * 10, b"", b"\0\xff"])
    assert stream.read() == b""


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
