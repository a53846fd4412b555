"""The numbers of a report, from a run's files."""

import json
import math
import subprocess
import time
from pathlib import Path

import pytest
from fakes.finished_run import EVALUATION, record_start
from fakes.statuses import make_status

from asyncrl.errors import InputError
from asyncrl.journal.starts import Usage, forget_end
from asyncrl.journal.writer import Journal
from asyncrl.readers.report.collect import collect, distribution
from asyncrl.readers.report.page import remarks_of
from asyncrl.readers.report.schema import RunReport
from asyncrl.run.metrics_file import MetricsWriter
from asyncrl.run.status import write_status


def test_the_last_version_and_the_best_one_are_told_apart(run_folder: Path) -> None:
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        for step, accuracy in ((2, 0.85), (4, 0.9), (6, 0.9)):
            greedy = {"greedy_accuracy": accuracy, "greedy_low": 0.5, "greedy_high": 0.95, "num_tasks": 10}
            writer.evaluation({"step": step, "when": "during", **greedy, "response_tokens_mean": 9.0})
    heldout = collect(run_folder).heldout
    assert heldout is not None and heldout.base is not None and heldout.last is not None
    assert (heldout.base["step"], heldout.last["step"], heldout.last["greedy_accuracy"]) == (0, 10, 0.8)
    # The first of the two highest, which was sampled by nobody.
    assert (heldout.best["step"], heldout.best["greedy_accuracy"], "k" in heldout.best) == (4, 0.9, False)
    assert heldout.num_candidates == 4


def test_a_run_without_evaluations_has_none_and_keeps_its_other_numbers(run_folder: Path) -> None:
    metrics = run_folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if '"eval"' not in line))
    report = collect(run_folder)
    assert report.heldout is None and report.run.steps == 10
    assert report.tokens.generated == 10 and report.response_tokens.last == 15.0


def test_evaluations_under_different_templates_are_pointed_out(run_folder: Path) -> None:
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.evaluation({"step": 10, "when": "after", "template": "<r1>", **EVALUATION})
    heldout = collect(run_folder).heldout
    assert heldout is not None and not heldout.is_one_template


def test_numbers_that_are_none_leave_the_distributions(run_folder: Path) -> None:
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.step({"step": 11, "mismatch_kl": math.nan, "step_seconds": math.nan, "staleness_max": 6})
    # A foreign writer may know no null.
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 12, "mismatch_kl": NaN, "response_tokens_mean": Infinity}\n')
    report = collect(run_folder)
    assert report.off_policy["mismatch_kl"].num_steps == 10
    assert (report.off_policy["staleness_max"].max, report.off_policy["staleness_max"].median) == (6.0, 2.0)
    assert report.response_tokens.last == 15.0 and report.time.step_seconds == 20.0
    json.loads(report.model_dump_json(), parse_constant=lambda word: pytest.fail(word))


def test_quantiles_are_values_that_were_seen() -> None:
    found = distribution([float(n) for n in range(100, 0, -1)])
    assert (found.mean, found.median, found.p90, found.p99, found.max) == (50.5, 50.0, 90.0, 99.0, 100.0)
    assert distribution([3.0]).p99 == 3.0


def test_time_of_all_starts_counts_and_steps_that_were_trained_again_count_once(run_folder: Path) -> None:
    record_start(run_folder, 100.0, [Usage("run", 3600.0), Usage("trainer 0", 3600.0, 1800.0)])
    record_start(
        run_folder,
        9000.0,
        [Usage("run", 1800.0), Usage("trainer 0", 1800.0, 900.0, num_restarts=2)],
        version=4,
        python="3.99",
    )
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.resumed(4)
        for step in (5, 6):
            writer.step({"step": step, "step_seconds": 2.0, "num_tokens": 10})
    report = collect(run_folder)
    # Steps 1 to 4 of the first start, 5 and 6 of the second.
    assert report.run.steps == 6 and report.time.step_seconds == 12.0 and report.tokens.in_loss == 20
    assert report.tokens.generated == 10
    assert report.time.wall_seconds == 5400.0
    (trainer,) = report.time.processes
    assert (trainer.wall_hours, trainer.cpu_hours, trainer.num_restarts) == (1.5, 0.75, 2)
    assert [start.version for start in report.starts] == [0, 4]
    assert report.starts[1].differences[0].startswith("python: recorded")
    assert "changed between two starts" in remarks_of(report)[-1]


def test_groups_of_the_books_are_the_journals(run_folder: Path) -> None:
    tokens = collect(run_folder).tokens
    assert (tokens.unaccounted, tokens.generated_groups) == (0, 3)
    groups = {fate.name: fate.groups for fate in tokens.fates}
    assert groups == {"trained": 1, "dropped: stale": 1, "queued": 1}


def test_the_operations_of_the_tiny_run_are_those_counted_by_hand(run_folder: Path) -> None:
    record_start(run_folder, 1.0, [Usage("run", 1.0)])
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.resumed(-1)
        writer.step({"step": 1, "model_flops": 1e9})
        writer.step({"step": 2, "model_flops": 2e9})
    report = collect(run_folder)
    # Three prompts of 4 tokens; responses of 3, 4, 2 and 1 tokens, all but the last of each fed back.
    # Weights per layer: q and o 32 x 32 each, k and v 32 x 16 each, 3 x 32 x 48; two layers.
    weights = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    # Prompts: 1 + 2 + 3 + 4 = 10 each; then 5 + 6, 5 + 6 + 7, 5, nothing.
    looks = 3 * 10 + 11 + 18 + 5
    by_hand = 2 * weights * (12 + 6) + 2 * 32 * 40 * 10 + 4 * looks * 4 * 8 * 2
    assert report.flops.generated == by_hand
    assert report.flops.trained == 3e9
    assert report.model.matrix_weights == weights + 32 * 40 and report.tokens.prompt == 12


def test_a_step_without_a_count_leaves_the_trained_operations_unknown(run_folder: Path) -> None:
    record_start(run_folder, 1.0, [Usage("run", 1.0)])
    assert collect(run_folder).flops.trained is None


def test_a_run_is_finished_once_its_journal_says_so(run_folder: Path) -> None:
    assert collect(run_folder).run.state == "finished"
    journal = Journal(run_folder / "journal.sqlite")
    journal.write(forget_end())
    journal.close()
    # All steps and the evaluation after them are there: the recipe may ask for more.
    assert collect(run_folder).run.state == "stopped"


def test_a_run_that_says_that_it_trains_is_not_finished_while_its_process_lives(run_folder: Path) -> None:
    assert collect(run_folder).run.state == "finished"
    writer = subprocess.Popen(["sleep", "600"])
    try:
        write_status(run_folder, make_status(pid=writer.pid))
        report = collect(run_folder)
    finally:
        writer.kill()
        writer.wait()
    assert report.run.state == "running"
    assert remarks_of(report) == ["This run is NOT FINISHED: it is running, 10 of 10 steps so far."]
    # After kill -9 the last status stays.
    assert collect(run_folder).run.state == "finished"


def test_a_run_on_another_host_is_running_while_it_writes(run_folder: Path) -> None:
    write_status(run_folder, make_status(host="another"))
    assert collect(run_folder).run.state == "running"
    write_status(run_folder, make_status(host="another", time_seconds=time.time() - 60))
    assert collect(run_folder).run.state == "finished"


@pytest.mark.parametrize("name", ["journal.sqlite", "metrics.jsonl", "recipe.yaml", "status.json"])
def test_a_damaged_file_is_named(run_folder: Path, name: str) -> None:
    for companion in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (run_folder / companion).unlink(missing_ok=True)
    (run_folder / name).write_bytes(b"garbage\xff\n" * 1000)
    with pytest.raises(InputError, match=name):
        collect(run_folder)


def test_the_report_reads_back_as_it_was_written(run_folder: Path) -> None:
    record_start(run_folder, 1.0, [Usage("run", 1.0), Usage("controller", 1.0, 0.5)])
    report = collect(run_folder)
    assert RunReport.model_validate_json(report.model_dump_json()) == report
