"""Limits, commands, languages, settings, messages: what is wrong with them is said before anything runs."""

import io

import pytest

from sandbox import frames
from sandbox.command import Command
from sandbox.languages import LANGUAGES, find_language
from sandbox.limits import Limits, parse_limits
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
    assert find_language("C++", LANGUAGES) is LANGUAGES["cpp"]
    assert find_language("py", LANGUAGES) is LANGUAGES["python"]
    with pytest.raises(ValueError, match="'cobol' is unknown; expected one of bash, c, cpp, python"):
        find_language("cobol", LANGUAGES)


def test_the_unsafe_tier_must_be_asked_for_twice():
    with pytest.raises(ValueError, match="allow_unsafe"):
        SandboxSettings(tiers=(Tier.UNSAFE,))


def test_a_message_comes_back_as_it_went():
    packed = frames.pack({"a": 1}, [b"x" * 10, b"", b"\0\xff"])
    stream = io.BytesIO(packed)
    assert frames.receive(stream.read) == ({"a": 1}, [b"x" * 10, b"", b"\0\xff"])
    assert stream.read() == b""
