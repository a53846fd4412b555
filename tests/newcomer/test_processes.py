"""The same command line as processes: signals, closed pipes, modules of the current folder, prints."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fakes.newcomer import row, write_project, write_zeros
from fakes.records import make_queue

ASYNCRL = str(Path(sys.executable).with_name("asyncrl"))
PRINTING = """
from verifiers.verdict import Outcome, Verdict
print("LOADED")
class V:
    def parse_reference(self, raw):
        print("PARSED")
        return raw
    def verify(self, response, reference):
        print("VERIFIED")
        return Verdict(Outcome.CORRECT, 1.0)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_project(tmp_path)
    write_zeros(tmp_path / "model")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text((tmp_path / "recipe.yaml").read_text())
    make_queue(tmp_path / "run").journal.close()
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(60)\n")
    return tmp_path


def start(*words: str, cwd: Path, ignored: int | None = None, **environment: str) -> subprocess.Popen[str]:
    """Ignores the signal `ignored` and no other, however the tests were started."""

    def set_signals() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [ASYNCRL, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=set_signals,
    )


def wait_until_busy(process: subprocess.Popen[str], words: str) -> None:
    """Until it waits for something, which it cannot tell: it has printed, or started its workers."""
    deadline = time.monotonic() + 300
    if words.startswith("view"):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://")
        return
    while not psutil.Process(process.pid).children():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("words", ["verify -"])
def test_a_command_that_waits_ends_by_a_signal_without_a_traceback(
    here: Path, words: str, number: int, code: int
) -> None:
    with start(*words.split(), cwd=here) as process:
        wait_until_busy(process, words)
        process.send_signal(number)
        # Standard input stays open: nobody has to press Enter.
        assert process.wait(timeout=300) == code
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive),
        signal.SIGHUP,
        pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive),
    ],
)
def test_the_page_ends_by_a_signal(here: Path, number: int) -> None:
    with start("view", "run", cwd=here) as process:
        wait_until_busy(process, "view")
        process.send_signal(number)
        assert process.wait(timeout=300) == (129 if number == signal.SIGHUP else 0)
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.parametrize("words", ["verify -", pytest.param("view run", marks=pytest.mark.exhaustive)])
def test_a_command_in_the_background_of_a_script_ends_by_sigterm(here: Path, words: str) -> None:
    # Shells without job control start such a command with SIGINT ignored.
    with start(*words.split(), cwd=here, ignored=signal.SIGINT) as process:
        wait_until_busy(process, words)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == (0 if words == "view run" else 143)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("check recipe.yaml", marks=pytest.mark.exhaustive),
        pytest.param("journal run", marks=pytest.mark.exhaustive),
        "keys",
        "verify rows.jsonl",
    ],
)
def test_a_reader_that_has_seen_enough_is_no_failure_to_talk_about(here: Path, words: str) -> None:
    lines = [json.dumps({"gold": "1", "response": "\\boxed{1}", "text": "x" * 1000}) for _ in range(300)]
    (here / "rows.jsonl").write_text("\n".join(lines))
    with start(*words.split(), cwd=here) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=300) in (0, 128 + signal.SIGPIPE)
        said = process.stderr.read()
    assert "Traceback" not in said and "BrokenPipe" not in said


def test_modules_in_the_current_folder_are_not_imported_in_place_of_pythons(here: Path) -> None:
    for name in ("random", "queue", "logging", "json", "torch", "sympy", "verifiers"):
        (here / f"{name}.py").write_text(f"raise RuntimeError('the {name}.py of the current folder')\n")
    (here / "rows.jsonl").write_text(json.dumps({"gold": "x^2-1", "response": "\\boxed{(x-1)(x+1)}"}) + "\n")
    for words in ("check recipe.yaml", "verify rows.jsonl"):
        with start(*words.split(), cwd=here) as process:
            out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "of the current folder" not in out + err


def test_what_a_verifier_prints_is_no_row_and_no_part_of_a_report(here: Path) -> None:
    (here / "own.py").write_text(PRINTING)
    (here / "train.jsonl").write_text(row(verifier="./own.py:V") + "\n")
    (here / "rows.jsonl").write_text(json.dumps({"gold": "1", "response": "1"}) + "\n")
    for words in ("verify rows.jsonl --verifier ./own.py:V", "verify-data recipe.yaml", "check recipe.yaml"):
        with start(*words.split(), cwd=here) as process:
            out, err = process.communicate(timeout=300)
        assert "Traceback" not in err
        assert not {"LOADED", "PARSED", "VERIFIED"} & set(out.split())
        assert {"LOADED", "PARSED"} <= set(err.split())
        if words.startswith("verify "):
            assert json.loads(out)["verdict"]["outcome"] == "correct" and "VERIFIED" in err
