"""`asyncrl status` of runs that train, ended, failed and died, on wide and narrow terminals; the end of a
run."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.finished_run import edit_journal
from fakes.statuses import make_status
from rich.console import Console

from asyncrl.commands.main import main
from asyncrl.journal.starts import RunEnd, record_end
from asyncrl.journal.writer import Journal
from asyncrl.observe.metrics.mishaps import POST_MORTEM
from asyncrl.readers.page.overview import read_line
from asyncrl.readers.page.runs import Run
from asyncrl.readers.report.collect import collect
from asyncrl.readers.status import TITLE_WIDTH, print_end, read_run, status_lines
from asyncrl.run.metrics_file import MetricsWriter
from asyncrl.run.status import ServerStatus, write_status

SERVER: ServerStatus = {
    "url": "http://127.0.0.1:30000",
    "state": "serving",
    "version": 12,
    "requests": 16,
    "tokens_per_second": 3120.0,
    "restarts": 1,
    "retractions": 0,
    "busy_share": 0.98,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run at step 12 of 40, with an evaluation, an alarm that is on, one that is over, and warnings."""
    run = tmp_path / "run"
    with MetricsWriter(run / "metrics.jsonl") as metrics:
        metrics.evaluation({"step": 0, "when": "before", "greedy_accuracy": 0.32})
        for step in range(1, 13):
            metrics.step({"step": step, "reward_mean": 0.41, "step_seconds": 2.5})
        metrics.evaluation(
            {"step": 10, "when": "during", "greedy_accuracy": 0.62, "greedy_low": 0.55, "greedy_high": 0.69}
        )
        metrics.event("alarm", alarm="dead_groups", step=4, text="no signal", is_first=True, is_on=True)
        metrics.event("alarm", alarm="entropy", step=9, text="entropy fell", is_first=True, is_on=True)
        metrics.event("alarm", alarm="dead_groups", step=11, text="signal again", is_first=True, is_on=False)
        for count in (1, 2):
            metrics.event("warning", text="server http://a:1 leaves: \x1b[2Jit died", step=12, count=count)
    (run / "recipe.yaml").write_text("name: run\n")
    write_status(run, make_status(step=12, servers=[SERVER]))
    return run


Printed = Callable[..., tuple[int, str]]


@pytest.fixture
def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Exit code and output of the command."""
    return lambda *words: (main(["status", str(folder), *words]), capsys.readouterr().out)


def test_faults_of_verifiers_are_counted_with_those_that_a_retry_mended(
    folder: Path, printed: Printed
) -> None:
    assert "\nfaults" not in printed()[1]
    with MetricsWriter(folder / "metrics.jsonl") as metrics:
        for step, retried in ((13, 30), (14, 9)):
            metrics.step({"step": step, "outcomes": {"fault": 1}, "faults_retried": retried})
    lines = [" ".join(line.split()) for line in printed()[1].splitlines()]
    assert "faults 2 in batches, 39 whose retry gave a verdict" in lines
    run = read_run(folder)
    assert (run.num_faults, run.num_retried) == (2, 39)


def test_a_running_run_says_who_waits_how_long_it_takes_and_what_is_wrong(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out = printed()
    lines = out.splitlines()
    assert code == 0
    assert "state     training" in lines
    # 28 steps of 2.5 s.
    assert "step      12 of 40, 1:10 left" in lines
    assert "held-out  32% -> 62% 55-69 at step 10" in lines
    assert "queue     5 groups open, 14 ready, 16 taken; 1.2k tokens in flight" in lines
    assert "trainer   waits for rollouts: 14 of 16 groups ready" in lines
    assert "rollouts  works" in lines
    assert "alarm     step 9: entropy fell" in lines and "was       step 11: signal again" in lines
    assert "warning   step 12: server http://a:1 leaves: \\x1b[2Jit died (2 times)" in lines
    said = " ".join(" ".join(lines).split())
    assert "server 127.0.0.1:30000 serving version 12, 16 requests, 3.1k tok/s, busy 98%, 1 restarts" in said
    assert any(line.startswith("disk ") and line.endswith("GiB free") for line in lines)


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(folder: Path, width: int) -> None:
    long = {**SERVER, "url": "http://a-host-with-a-long-name.example.org:30000", "state": "restarting"}
    write_status(folder, make_status(step=12, total_steps=100_000, servers=[SERVER, long]))
    with MetricsWriter(folder / "metrics.jsonl") as metrics:
        long_text = "word " * 30 + "x" * 300 + "\nand a second line"
        metrics.event("warning", text=long_text, step=12, count=1)
    lines = status_lines(read_run(folder), width=width)
    assert max(line.cell_len for line in lines) <= width
    # What tells two servers of a host apart is kept.
    assert "30000" in "".join(line.plain[TITLE_WIDTH:] for line in lines)


def test_repeated_warnings_are_one_line_with_their_count(folder: Path, printed: Printed) -> None:
    with MetricsWriter(folder / "metrics.jsonl") as metrics:
        for count in (1, 10):
            metrics.event("warning", text="a server leaves", step=11, count=count)
            metrics.event("warning", text=f"trainer {count} died", step=12, count=1)
    _, out = printed()
    shown = [line.removeprefix("warning   ") for line in out.splitlines() if line.startswith("warning")]
    assert shown == [
        "step 12: trainer 1 died",
        "step 11: a server leaves (10 times)",
        "step 12: trainer 10 died",
    ]


def test_a_warning_with_the_end_of_a_log_is_its_first_line(folder: Path, printed: Printed) -> None:
    with MetricsWriter(folder / "metrics.jsonl") as metrics:
        text = (
            "trainer 0 was killed. Its last lines (logs/trainer-0.log):\nstep 7: loss 0.1\nstep 8: loss 0.2"
        )
        metrics.event("warning", text=text, step=12, count=1)
    _, out = printed()
    assert "step 12: trainer 0 was killed. Its last lines (logs/trainer-0.log):" in out and "loss" not in out


def test_the_json_holds_everything(folder: Path, printed: Printed) -> None:
    code, out = printed("--json")
    found = json.loads(out)
    assert (code, found["state"], found["step"], found["is_running"]) == (0, "training", 12, True)
    assert found["seconds_left"] == 70.0 and found["servers"] == [SERVER]
    assert [(a["alarm"], a["is_on"]) for a in found["alarms"]] == [("dead_groups", False), ("entropy", True)]


@pytest.mark.parametrize(
    ("keys", "code", "state"),
    [
        ({"state": "finished", "step": 40}, 0, "finished"),
        ({"state": "stopped"}, 3, "stopped"),
        ({"state": "failed"}, 1, "failed"),
        ({"time_seconds": 1000.0}, 1, "no longer running"),
        ({"pid": 2**22 + 1}, 1, "no longer running"),
    ],
)
def test_the_exit_code_says_how_a_run_ended(
    folder: Path, printed: Printed, keys: dict[str, Any], code: int, state: str
) -> None:
    write_status(folder, make_status(**keys))
    (folder / POST_MORTEM).write_text("What ended the run\n------------------\nDiskError: full\n\nServers\n")
    (folder / "report.html").write_text("")
    found, out = printed()
    assert (found, state in out) == (code, True)
    assert "left" not in out and "waits" not in out
    assert ("DiskError: full" in out) == (state == "failed")
    assert ("report" in out) == (state != "no longer running")


def test_a_run_that_was_killed_after_its_end_is_complete(folder: Path, printed: Printed) -> None:
    write_status(folder, make_status(step=40, pid=2**22 + 1))
    code, out = printed()
    assert code == 1 and "the same command resumes it" in " ".join(out.split())
    assert read_line(Run("run", folder))["state"] == "no longer running"
    journal = Journal(folder / "journal.sqlite")
    record_end(journal, RunEnd(version=40, reason="num_steps"))
    journal.close()
    code, out = printed()
    assert (
        code == 0
        and "state     finished" in out
        and "resumes" not in out
        and "the same command writes it" in " ".join(out.split())
    )
    line = read_line(Run("run", folder))
    assert line["state"] == "finished"


def test_a_folder_without_a_run_is_refused_and_one_that_has_not_started_says_so(
    folder: Path, tmp_path: Path, printed: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    (folder / "status.json").unlink()
    code, out = printed()
    assert (code, "not started" in out) == (0, True)
    (folder / "status.json").write_text("{")
    assert main(["status", str(folder)]) == 2


def shown(run_folder: Path, *, width: int = 80, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    commands = {"checkpoint": "runs/sums/checkpoints/10", "chat": "asyncrl chat x"}
    console = Console(file=file, width=width, highlight=False)
    print_end(collect(run_folder), run_folder, commands, console=console)
    file.seek(0)
    return file.read()


def test_the_evaluations_and_the_books_are_shown(run_folder: Path) -> None:
    text = shown(run_folder)
    assert "response tokens, first to last step  6.00 -> 15.0" in text
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "greedy accuracy 50.0% [24.0, 76.0] 80.0% [49.0, 94.0] 80.0% [49.0, 94.0]" in lines
    assert "pass@2 90.0% [60.0, 98.0] 90.0% [60.0, 98.0] 90.0% [60.0, 98.0]" in lines
    assert "= trained 7 1 70.0%" in lines
    assert "+ dropped: stale 2 1 20.0%" in lines
    assert "unaccounted" not in text


def test_a_token_that_nobody_accounts_for_is_pointed_out(run_folder: Path) -> None:
    edit_journal(run_folder, "DELETE FROM counters WHERE name = 'tokens_dropped:stale'")
    text = shown(run_folder)
    assert "! unaccounted" in text and "this is a defect" in text


def test_what_to_do_next_can_be_copied(run_folder: Path) -> None:
    text = shown(run_folder)
    assert "checkpoint  runs/sums/checkpoints/10\n" in text
    assert "asyncrl chat x\n" in text
    # A path longer than the terminal is not broken into lines.
    assert f"{run_folder / 'report.html'}\n" in text


@pytest.mark.parametrize(("width", "encoding"), [(40, "utf-8"), (80, "ascii"), (200, "utf-8")])
def test_it_works_on_narrow_plain_and_wide_terminals(run_folder: Path, width: int, encoding: str) -> None:
    text = shown(run_folder, width=width, encoding=encoding)
    tables = text[: text.index("report  ")].splitlines()
    assert max(map(len, tables)) <= width
    assert "\x1b" not in text


def test_the_end_of_a_run_tells_of_its_alarms(run_folder: Path) -> None:
    assert "alarm" not in shown(run_folder)
    with MetricsWriter(run_folder / "metrics.jsonl") as metrics:
        for name, step, is_on in (
            ("capped_share", 1, True),
            ("dead_groups", 1, True),
            ("dead_groups", 2, False),
        ):
            metrics.event("alarm", alarm=name, step=step, text="7.0% are capped", is_on=is_on)
    text = shown(run_folder)
    assert "alarm capped_share  at step 1: 7.0% are capped" in text
    assert "alarm dead_groups  over since step 2" in text


def test_a_run_without_steps_prints_its_books(run_folder: Path) -> None:
    (run_folder / "metrics.jsonl").unlink()
    assert "0 steps" in shown(run_folder)


def test_a_run_with_agents_says_how_they_ended_and_what_trained_nothing(run_folder: Path) -> None:
    assert "agents  " not in shown(run_folder)
    causes = "agents without a call of the model: 3 (the first: train:1)"
    with MetricsWriter(run_folder / "metrics.jsonl") as metrics:
        metrics.step({"step": 11, "agents_replied": 1000, "agents_without_call": 1})
        metrics.step({"step": 12, "agents_replied": 5, "agents_without_call": 2, "causes": causes})
    lines = shown(run_folder, width=200).splitlines()
    assert {"agents  1,005 replied, 3 no call", f"causes  {causes}"} <= set(lines)
