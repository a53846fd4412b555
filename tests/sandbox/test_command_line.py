"""`asyncrl sandbox run|doctor`, as a user would type it."""

import argparse
import base64
import json
import os

import pytest

from asyncrl.commands import sandbox as command
from asyncrl.commands import standard_input
from sandbox.doctor import gaps
from sandbox.result import Tier


def call(capsys, *words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code = command.run(parser.parse_args(list(words)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_prints_the_result_as_one_json_object(tmp_path, capsys):
    program, stdin = tmp_path / "p.py", tmp_path / "in"
    program.write_text("import sys; print(input(), sys.argv[1:])")
    stdin.write_text("hello\n")
    code, out, _ = call(capsys, "run", str(program), "a", "b", "--stdin", str(stdin))
    result = json.loads(out)
    assert code == 0
    assert (result["status"], result["stdout"], result["exit_code"]) == ("ok", "hello ['a', 'b']\n", 0)
    assert result["tier"] in ("namespaces", "landlock")
    assert {"cpu_seconds", "wall_seconds", "peak_memory_bytes", "stderr", "signal", "detail"} <= set(result)


@pytest.mark.parametrize(("source", "words", "status", "code"), [
    ("import time; time.sleep(9)", ("--wall-seconds", "0.2"), "time_limit", 124),
    pytest.param("while True: pass", ("--cpu-seconds", "1"), "time_limit", 124, marks=pytest.mark.exhaustive),
    ("bytearray(1 << 30)", ("--memory-mb", "100"), "memory_limit", 137),
    ("while True: print('x' * 9999)", ("--output-mb", "0.1"), "output_limit", 137),
    ("raise SystemExit(4)", (), "wrong_exit", 4),
    ("import os; os.abort()", (), "signal", 134),
])  # fmt: skip
def test_a_programs_own_failure_is_a_result_and_the_exit_code(tmp_path, capsys, source, words, status, code):
    program = tmp_path / "p.py"
    program.write_text(source)
    ended, out, _ = call(capsys, "run", str(program), *words)
    assert (ended, json.loads(out)["status"]) == (code, status)


def test_what_is_piped_in_is_the_programs_standard_input(tmp_path, capsys, monkeypatch):
    program = tmp_path / "p.py"
    program.write_text("print(input()[::-1])")
    reading, writing = os.pipe()
    os.write(writing, b"abc\n")
    os.close(writing)
    monkeypatch.setattr(standard_input, "FILE", reading)
    code, out, _ = call(capsys, "run", str(program))
    os.close(reading)
    assert (code, json.loads(out)["stdout"]) == (0, "cba\n")


def test_output_that_is_no_text_is_also_given_in_base64(tmp_path, capsys):
    program = tmp_path / "p.sh"
    program.write_text(r"printf '\377\000a'")
    _, out, _ = call(capsys, "run", "--lang", "bash", str(program))
    assert base64.b64decode(json.loads(out)["stdout_base64"]) == b"\xff\x00a"


@pytest.mark.parametrize("words", [
    ("run", "/no/such/file.py"),
    ("run", "{program}", "--lang", "cobol"),
    ("run", "{program}", "--wall-seconds", "-1"),
    ("run", "{program}", "--stdin", "/no/such/file"),
    ("run", "{program}", "--python", "/no/python"),
    ("doctor", "--python", "/no/python"),
])  # fmt: skip
def test_bad_input_ends_with_two_and_one_sentence(tmp_path, capsys, words):
    program = tmp_path / "p.py"
    program.write_text("print(1)")
    code, out, err = call(capsys, *(word.format(program=program) for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("asyncrl sandbox: ") and len(err.splitlines()) == 1


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
