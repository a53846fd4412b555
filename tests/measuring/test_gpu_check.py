"""`make gpu-check`: what it says without a GPU, what it makes of parts that fail or hang, its table.

test_gpu_rehearsal.py walks through the parts themselves.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from fakes.gpus import row, write_nvidia_smi
from fakes.processes import is_alive

from asyncrl.errors import InputError
from tests.benchmarks.acceptance import throughput
from tests.benchmarks.acceptance.checks import FAIL, NOT_RUN, PASS, Check, Checks, Row, Setting, read_rows
from tests.benchmarks.acceptance.handover import MemoryWatch
from tests.benchmarks.acceptance.kernels import read_suite
from tests.benchmarks.acceptance.load import Proof
from tests.benchmarks.acceptance.models import VOCABULARY, token_of
from tests.benchmarks.acceptance.parts import PARTS, Part, minutes_of, pieces
from tests.benchmarks.acceptance.processes import part_environment, run_in_time
from tests.benchmarks.acceptance.server_log import GIVES, TAKES, graphs_in, num_calls
from tests.benchmarks.acceptance.table import page, table
from tests.benchmarks.gpu_check import Acceptance, chosen
from tests.benchmarks.gpu_throughput import profiled

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "benchmarks" / "gpu_check.py"
PARTS_FOLDER = ROOT / "tests" / "benchmarks" / "acceptance"


def check(folder: Path, visible: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The script on a machine with one GPU and a build of torch for CPUs."""
    write_nvidia_smi(folder / "bin", [row(0)])
    metadata = folder / "site" / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    machine = {"PATH": str(folder / "bin"), "PYTHONPATH": str(folder / "site")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--folder", str(folder / "result"), *words],
        env=os.environ | machine | {"CUDA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("visible", "why"),
    [("", "none is visible"), ("0", "torch is a build for CPUs: make setup GPU=1")],
)
def test_without_a_gpu_that_torch_can_use_it_says_why_and_runs_nothing(
    visible: str, why: str, tmp_path: Path
) -> None:
    done = check(tmp_path, visible)
    assert done.returncode == 2 and not (tmp_path / "result").exists()
    assert done.stderr == f"make gpu-check needs an NVIDIA GPU that torch can use, but {why}.\n"


def test_a_model_that_is_no_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = check(tmp_path, "0", "--model", str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "is not a folder with a config.json" in done.stderr


class Rehearsed(Acceptance):
    """With programs of a test in place of the parts'."""

    def __init__(self, folder: Path, programs: dict[str, str], **options: object) -> None:
        parts = [Part(name, 30.0, f"about {name}") for name in programs]
        super().__init__(parts, folder, device="cpu", num_gpus=0, model=None)
        self.programs = programs


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Path]]:
    """Runs parts that are these programs; the exit code and the folder."""

    def run(slower: float = 1.0, **programs: str) -> tuple[int, Path]:
        def started(command: list[str], log: Path, **options: object):
            name = command[1].rpartition(".")[2]
            code = "import sys, json, time, subprocess\nfrom pathlib import Path\n"
            code += "from tests.benchmarks.acceptance.checks import Checks, Row\n"
            code += "checks = Checks(Path(sys.argv[sys.argv.index('--rows') + 1]))\n" + programs[name]
            return run_in_time(["-c", code, *command[2:]], log, **options)

        monkeypatch.setattr("tests.benchmarks.gpu_check.run_in_time", started)
        monkeypatch.setattr("tests.benchmarks.gpu_check.SLOWER", slower)
        return Rehearsed(tmp_path / "result", programs).run(seconds=900), tmp_path / "result"

    return run


GOOD = "checks.add(Row('speed', 'pass', '12,346 tokens/s', ''))"


def test_a_part_that_breaks_is_shown_with_its_last_lines_and_the_others_run(
    rehearse: Callable[..., tuple[int, Path]],
) -> None:
    half = "checks.add(Row('half', 'pass', 'so far', ''))\nprint('no kernel image')\nraise SystemExit(3)"
    code, folder = rehearse(broken="print('no kernel image')\nraise SystemExit(3)", half=half, good=GOOD)
    assert code == 1
    result = json.loads((folder / "result.json").read_text())
    verdicts = [(each["part"], each["verdict"]) for each in result["rows"]]
    assert verdicts == [("broken", FAIL), ("half", PASS), ("half", FAIL), ("good", PASS)]
    page = (folder / "page.md").read_text()
    assert "it ended with 3: no kernel image" in page and "## broken: the end of its log" in page
    assert "| good | speed | pass | 12,346 tokens/s |  |" in page
    assert result["summary"].startswith("2 pass, 2 FAIL in ")


def test_a_part_that_only_passes_is_a_success(rehearse: Callable[..., tuple[int, Path]]) -> None:
    assert rehearse(good=GOOD)[0] == 0


def test_a_part_that_takes_too_long_leaves_its_rows_and_no_process(
    rehearse: Callable[..., tuple[int, Path]],
) -> None:
    # A server has a session of its own, and outlives a kill of its parent's group.
    stuck = (
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = subprocess.Popen(sleep, start_new_session=True)\n"
        "checks.add(Row(str(child.pid), 'pass', 'started', ''))\ntime.sleep(600)"
    )
    code, folder = rehearse(slower=0.1, stuck=stuck, good=GOOD)
    rows = json.loads((folder / "result.json").read_text())["rows"]
    assert code == 1 and [each["verdict"] for each in rows] == [PASS, FAIL, PASS]
    assert rows[1]["figure"] == "not done after 3 s"
    pid = int(rows[0]["what"])
    assert not psutil.pid_exists(pid) or not is_alive(psutil.Process(pid))


def test_parts_behind_the_end_of_the_time_are_named_and_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.benchmarks.gpu_check.describe", lambda device: {})
    acceptance = Acceptance(PARTS[:2], tmp_path, device="gpu", num_gpus=1, model=None)
    assert acceptance.run(seconds=10.0) == 1
    assert [row.verdict for _, row in acceptance.rows] == [NOT_RUN, NOT_RUN]
    assert acceptance.rows[0][1].advice == "Repeat with ARGS='--parts real'."


def test_all_parts_are_programs_and_fit_into_the_time() -> None:
    assert all((PARTS_FOLDER / f"{part.name}.py").is_file() for part in PARTS)
    # Each has its whole limit, and the page says the sum.
    assert minutes_of(PARTS) == pytest.approx(sum(part.limit_seconds for part in PARTS) / 60)
    assert f"in at most {math.ceil(minutes_of(PARTS))} minutes" in (ROOT / "docs" / "gpus.md").read_text()
    assert chosen(None) == list(PARTS)
    assert [part.name for part in chosen("kill,real")] == ["real", "kill"]
    with pytest.raises(InputError, match=r"names speed, but the parts are real, .* handover"):
        chosen("real,speed")


def test_pieces_take_nine_minutes_at_most_and_have_each_part_once_the_run_first() -> None:
    found = pieces()
    assert (
        [part for piece in found for part in piece]
        == list(PARTS)
        == [p for n in (1, 2, 3) for p in chosen(None, n)]
    )
    assert all(minutes_of(piece) <= 9 for piece in found)
    assert [part.name for part in found[0]] == ["real", "throughput"]
    with pytest.raises(InputError, match="--piece is 4, but the pieces are 1 to 3"):
        chosen(None, 4)


def test_pieces_in_one_folder_make_one_table(rehearse: Callable[..., tuple[int, Path]]) -> None:
    assert rehearse(first="raise SystemExit(3)", second=GOOD)[0] == 1
    code, folder = rehearse(first=GOOD)
    rows = json.loads((folder / "result.json").read_text())["rows"]
    assert code == 0 and [(row["part"], row["verdict"]) for row in rows] == [
        ("second", PASS),
        ("first", PASS),
    ]


def test_paths_of_packages_stay_and_a_part_for_the_cpu_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/site:/opt/more")
    found = part_environment(on_gpu=False)
    assert found["PYTHONPATH"] == f"{ROOT}:{ROOT}/tests:/opt/site:/opt/more"
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in part_environment(on_gpu=True).keys() - os.environ.keys()


def test_a_row_passes_unless_its_block_raises_and_the_next_is_tried(tmp_path: Path) -> None:
    checks = Checks(tmp_path / "rows.jsonl")
    with checks.row("one", "Do this.") as made:
        made.figure = "KL 1e-9"
        made.require(True, "too large")
    with checks.row("two", "Do that.") as made:
        made.figure = "KL 0.5"
        made.require(False, "too large")
    with checks.row("three", "Do the other."):
        raise KeyError("loss")
    first, second, third = read_rows(tmp_path / "rows.jsonl")
    assert (first.verdict, first.figure, first.advice) == (PASS, "KL 1e-9", "")
    assert (second.verdict, second.figure, second.advice) == (FAIL, "too large; KL 0.5", "Do that.")
    assert (third.verdict, third.figure) == (FAIL, "KeyError: 'loss'")


def test_a_row_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Checks(path).add(Row("one", PASS, "", ""))
    with path.open("a") as file:
        file.write('{"what": "tw')
    assert [each.what for each in read_rows(path)] == ["one"]


def test_the_table_keeps_its_columns_whatever_a_figure_holds() -> None:
    lines = table([("kill", Row("a|b", FAIL, "1 | 2", "Read it."))])
    assert lines[-1] == "| kill | a/b | **FAIL** | 1 / 2 | Read it. |"
    assert "- GPUs: H100" in page({"GPUs": "H100"}, [], {}, 60.0)


JUNIT = (
    '<testsuites><testsuite><testcase name="a"/><testcase name="b[x]"><failure message="1 != 2&#10;more"/>'
    '</testcase><testcase name="c"><skipped message="needs Transformer Engine"/></testcase>'
    '<testcase name="d"><error message="no group"/></testcase></testsuite></testsuites>'
)


def test_tests_are_counted_and_each_that_failed_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(JUNIT)
    suite = read_suite(tmp_path / "tests.xml")
    assert suite.passed == 1 and suite.skipped == {"needs Transformer Engine": 1}
    assert suite.failures == [("b[x]", "1 != 2"), ("d", "no group")]


def test_a_token_of_other_weights_than_its_version_is_no_proof() -> None:
    from asyncrl.records import Segment

    proof = Proof()
    proof.see(Segment(3, [token_of(3)] * 4, [-0.1] * 4))
    assert not proof.wrong and proof.tokens[3] == 4
    proof.see(Segment(4, [token_of(4), token_of(3)], [-0.1] * 2))
    assert proof.wrong == [f"1 of 2 tokens of version 4 are {token_of(3)}, not {token_of(4)}"]
    assert len({token_of(version) for version in range(7)}) == 7 and token_of(1000) < VOCABULARY


def test_graphs_and_sleeps_are_read_from_a_servers_log(tmp_path: Path) -> None:
    log = "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1\n"
    assert graphs_in(log) == ["decode"] and graphs_in("decode CUDA graph disabled") == []
    call = 'INFO:     127.0.0.1:5 - "{} HTTP/1.1" {} OK\n'
    (tmp_path / "server-0.log").write_text(call.format(GIVES, 200) * 3 + call.format(GIVES, 500))
    assert num_calls(tmp_path, GIVES) == 3


def test_memory_is_what_nvidia_smi_says_before_and_after_a_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    log, call = tmp_path / "server-0.log", '"{} HTTP/1.1" 200 OK\n'
    write_nvidia_smi(tmp_path, ["1234"])

    def look(watch: MemoryWatch, *calls: str, mib: int, at: str) -> None:
        write_nvidia_smi(tmp_path, [str(mib)])
        with log.open("a") as file:
            file.writelines(call.format(each) for each in calls)
        deadline = time.monotonic() + 300
        while mib not in getattr(watch, at) and time.monotonic() < deadline:
            time.sleep(0.01)

    with MemoryWatch(tmp_path) as watch:
        look(watch, GIVES, mib=900, at="asleep")
        look(watch, TAKES, mib=1234, at="awake")
    check = Check()
    watch.check(check)
    assert check.figure == "900 MiB in use while it slept, 1234 MiB while it was awake"
    # The calls alone prove nothing.
    with pytest.raises(ValueError, match="less than its cache of 256 MiB came back; 1200 MiB"):
        watch.asleep[:] = [1200]
        watch.check(Check())
    with pytest.raises(ValueError, match="never looked at on both sides"):
        MemoryWatch(tmp_path).check(Check())


@pytest.mark.parametrize(
    ("mfu", "code", "verdict", "words"),
    [
        (0.17, 0, PASS, "MFU 17.0%"),
        (0.17, 1, PASS, "the profiled step behind them ended with exit code 1"),
        (0.09, 0, FAIL, "MFU is below 10%"),
        (math.nan, 0, FAIL, "the peak of a GPU is not known"),
        (None, 3, FAIL, "exit code 3 before a figure was known"),
    ],
)
def test_throughput_is_judged_by_its_figures_alone(
    mfu: float | None, code: int, verdict: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"packed tokens/s, best": 1.0, "MFU, best": mfu, "peak memory of rank 0, GiB": 1.0}
    figures |= {"attention": "sdpa", "Adam": "torch", "device": "a GPU"}

    def measured(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if mfu is not None:
            Path(command[-1]).write_text(json.dumps(figures))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr("tests.benchmarks.acceptance.throughput.subprocess.run", measured)
    throughput.work(Checks(tmp_path / "rows.jsonl"), Setting("gpu", tmp_path, 1, None))
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert row.verdict == verdict and words in row.figure


@pytest.mark.parametrize(("num_gpus", "num_rows"), [(0, 1), (1, 1), (2, 0)])
def test_what_takes_a_second_gpu_is_named_where_there_is_none(
    num_gpus: int, num_rows: int, tmp_path: Path
) -> None:
    checks, setting = Checks(tmp_path / "rows.jsonl"), Setting("gpu", tmp_path, num_gpus, None)
    assert setting.name_without_second_gpu(checks, "a second rank") is (num_gpus < 2)
    rows = read_rows(checks.path)
    assert [row.verdict for row in rows] == [NOT_RUN] * num_rows
    assert all(row.figure == f"needs 2 GPUs, {num_gpus} here" and not row.advice for row in rows)


def test_a_part_that_breaks_behind_rows_that_were_not_run_has_failed(
    rehearse: Callable[..., tuple[int, Path]],
) -> None:
    left_out = "checks.add(Row('nccl', 'not run', 'needs 2 GPUs', ''))"
    assert rehearse(whole=left_out)[0] == 0
    assert rehearse(broken=f"{left_out}\nraise SystemExit(3)")[0] == 1


def test_the_attention_that_ran_is_named() -> None:
    queries = torch.randn(1, 2, 8, 16)

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(queries, queries, queries)

    assert "aten::scaled_dot_product_attention" in str(profiled(attend)["attention operators"])
    assert profiled(lambda: torch.ones(2).sum())["attention operators"] == "none seen"


def test_a_long_figure_keeps_the_end_of_the_log_that_it_quotes(tmp_path: Path) -> None:
    checks = Checks(tmp_path / "rows.jsonl")
    with checks.row("a server", "Read it."):
        raise AssertionError("not ready " + "loading " * 200 + "ValueError: no such backend")
    (found,) = read_rows(tmp_path / "rows.jsonl")
    assert found.figure.startswith("AssertionError: not ready") and len(found.figure) < 300
    assert found.figure.endswith("ValueError: no such backend")
