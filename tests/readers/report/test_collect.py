"""What a report collects: evaluations, books, times, operations, costs, responses."""

import csv
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fakes.finished_run import EVALUATION, record_start, write_run
from fakes.statuses import make_status

from asyncrl.commands import main as cli
from asyncrl.errors import InputError
from asyncrl.journal.starts import Usage, forget_end
from asyncrl.journal.writer import Journal
from asyncrl.readers.report.collect import collect, distribution
from asyncrl.readers.report.costs import responses_table, time_of
from asyncrl.readers.report.schema import RunReport
from asyncrl.readers.report.write import remarks_of
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


ONE_HOUR = [Usage("run", 3600.0, num_gpus=2), Usage("server 0", 3600.0, 7200.0, num_gpus=2)]
STEP = {
    "step_seconds": 2.0,
    "train_seconds": 1.0,
    "wait_seconds": 0.5,
    "publish_seconds": 0.25,
    "trainer_idle_share": 0.25,
    "rollout_idle_share": 0.125,
}


def test_a_process_of_another_machine_leaves_the_cpu_hours_unknown() -> None:
    time = time_of({1.0: [*ONE_HOUR, Usage("server 1", 3600.0, None)]}, [])
    assert time.cpu_hours is None and time.gpu_hours == 2.0
    assert [process.cpu_hours for process in time.processes] == [2.0, None]


def test_a_run_that_recorded_nothing_claims_nothing() -> None:
    time = time_of({}, [{"step_seconds": 2.0}])
    assert (time.wall_seconds, time.cpu_hours, time.gpu_hours, time.step_seconds) == (None, None, None, 2.0)


def test_parts_are_shares_of_the_steps_and_add_up() -> None:
    # Of 2 s, 0.25 s are in no part.
    assert time_of({}, [STEP] * 3).step_shares == {
        "training": 0.5,
        "waiting for rollouts": 0.25,
        "publishing weights": 0.125,
        "saving checkpoints": 0.0,
        "draining servers": 0.0,
        "the rest": 0.125,
    }


def test_idle_shares_leave_the_start_up_out() -> None:
    time = time_of({}, [{**STEP, "trainer_idle_share": 0.9}, *[STEP] * 9])
    assert (time.trainer_idle_share, time.rollout_idle_share) == (0.25, 0.125)


def test_a_run_that_ended_before_its_first_step_has_no_shares() -> None:
    time = time_of({}, [])
    assert time.step_shares == {} and time.trainer_idle_share is None


def test_a_wait_that_began_before_its_step_counts_from_the_step_on() -> None:
    row = {"step_seconds": 2.0, "train_seconds": 0.5, "drain_seconds": 0.5, "wait_seconds": 4.0}
    shares = time_of({}, [row]).step_shares
    assert shares["waiting for rollouts"] == 0.5 and shares["draining servers"] == 0.25
    assert sum(shares.values()) == 1.0


COLUMNS: dict[str, Any] = {
    "response_tokens_mean_by_outcome": {"correct": 40.0, "wrong": 90.0, "no_answer": 9.0},
    "reflection_words_mean": 1.5,
    "reflection_words_share": 0.5,
    "reflection_words_mean_by_outcome": {"wrong": 3.0},
    "reflection_words_mean_by_word": {"wait": 1.25, "check": 0.25},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten steps, none of which has counts, then one that has."""
    folder = write_run(tmp_path)
    with MetricsWriter(folder / "metrics.jsonl") as writer:
        writer.step({"step": 11, **COLUMNS})
    return folder


def test_each_step_has_its_values_and_what_it_lacks_is_null(run: Path) -> None:
    report = collect(run)
    assert [each.step for each in report.responses] == list(range(1, 12))
    last = report.responses[-1]
    assert (last.correct_tokens_mean, last.wrong_tokens_mean) == (40.0, 90.0)
    assert (last.correct_reflection_words_mean, last.wrong_reflection_words_mean) == (None, 3.0)
    assert last.reflection_words_by_word == {"wait": 1.25, "check": 0.25}
    assert report.responses[0].reflection_words_mean is None
    table = responses_table(report)
    rows = {title: cells for title, *cells in table.rows}
    assert rows["reflection words per response"] == ["1.5", "1.5", "1.5", "1"]
    # Steps without counts are said, and are no zeros.
    assert "of 11" in table.note and "view.reflection_words): wait, mistake" in table.note


def test_the_csv_has_a_row_per_step_and_a_column_per_word(run: Path) -> None:
    assert cli.main(["report", str(run), "--format", "csv"]) == 0
    with (run / "responses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 12)]
    assert (rows[-1]["wrong_tokens_mean"], rows[-1]["reflection_word: wait"]) == ("90.0", "1.25")
    assert rows[0]["reflection_words_mean"] == ""
