"""Costs and lengths read back from the folder of a run."""

from pathlib import Path

import pytest
from fakes.recipes import make_recipe
from fakes.records import generate, make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.journal.lengths import GroupLengths, read_lengths
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.metrics_file import MetricsWriter, Row
from asyncrl.planning.lengths import Lengths
from asyncrl.planning.measured import (
    admission_seconds,
    fit_costs,
    fit_decodes,
    fit_line,
    measure,
    measured_lengths,
)
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.simulation import simulate
from asyncrl.records import DropReason
from asyncrl.run.folder import RunFolder
from asyncrl.serving.pass_sums import DecodeSums, LineSums

FIXED, PER_REQUEST = 0.004, 0.0002
PREFILL, PREFILL_TOKEN = 0.0003, 0.00001
NUM_STEPS = 24


def prefills(*points: tuple[float, float]) -> Row:
    """Passes of (tokens, seconds), as a step has their sums."""
    return columns("prefill", sum((LineSums.of_pass(*point) for point in points), LineSums()))


def decodes(*points: tuple[float, float, float]) -> Row:
    """Passes of (requests, tokens that they hold, seconds)."""
    return columns("decode", sum((DecodeSums.of_decode(*point) for point in points), DecodeSums()))


def columns(kind: str, sums: LineSums) -> Row:
    return {f"{kind}_{name}": value for name, value in sums.columns().items()}


def make_row(step: int, *, speed: float = 1.0) -> Row:
    """A step of 1 s: 0.1 s of waiting, 0.6 s of training, 0.3 s of publishing, a third of that a pause.

    Requests get tokens at the pace of FIXED and PER_REQUEST, at `speed` while the trainer works.
    """
    together = 20.0 + 10.0 * (step % 7)
    # Of each second 0.1 s at full speed, 0.8 s at `speed`, 0.1 s paused.
    decoding = 0.1 + 0.8 * speed
    tokens = together * decoding / (FIXED + PER_REQUEST * together)
    return {
        "step": step,
        "step_seconds": 1.0,
        "wait_seconds": 0.1,
        "train_seconds": 0.6,
        "publish_seconds": 0.3,
        "install_seconds": 0.1,
        "num_sequences": 32,
        "num_tokens": 500.0,
        "num_packed_tokens": 500.0,
        "rollout_tokens_per_second": tokens,
        "requests_per_server": together,
        "requests_together": together,
        # Ten passes that took as long as they should, and a prompt of 10 tokens for each of two groups.
        **decodes(*[(together, 50.0 * together, FIXED + PER_REQUEST * together)] * 10),
        **prefills((10.0, PREFILL + 10 * PREFILL_TOKEN), (1.0, PREFILL + PREFILL_TOKEN)),
        "verifier_seconds_p50": 0.0,
    }


def test_the_costs_of_servers_are_found_from_their_passes(tmp_path: Path) -> None:
    rows = [make_row(step) for step in range(1, NUM_STEPS)]
    groups = [GroupLengths(version, 0.0, None, 10, [5]) for version in range(45)]
    costs = fit_costs(rows, make_recipe(tmp_path), groups, origin="a test")
    assert costs.decode_seconds == pytest.approx(FIXED)
    assert costs.decode_seconds_per_request == pytest.approx(PER_REQUEST)
    # 22 steps of two passes over 11 tokens, for 44 groups.
    prefill = 22 * (2 * PREFILL + 11 * PREFILL_TOKEN)
    assert costs.prefill_group_seconds == pytest.approx(prefill / 44)
    assert costs.prefill_seconds_per_token == pytest.approx(prefill / (22 * 11))
    assert (costs.publish_seconds, costs.install_seconds) == pytest.approx((0.3, 0.1))
    assert costs.between_seconds == pytest.approx(0.0)


def test_training_costs_seconds_per_token_however_much_sequences_share(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    rows = [make_row(step) for step in range(1, NUM_STEPS)]
    for row in rows:
        row["num_tokens"] = 400.0 + 30.0 * (row["step"] % 5)
        # Each group's prompt of 10 tokens once, no response's last token; half of them are shared.
        num_groups = 32 / recipe.rollout.samples_per_group
        row["num_packed_tokens"] = 0.5 * (10 * num_groups + row["num_tokens"] - 32)
        row["train_seconds"] = 0.1 + 0.002 * row["num_packed_tokens"]
    costs = fit_costs(rows, recipe, [GroupLengths(0, 0.0, None, 10, [5])], origin="a test")
    assert (costs.train_seconds, costs.train_seconds_per_token) == pytest.approx((0.1, 0.001))


def test_a_line_is_fitted_without_negative_costs() -> None:
    x = [1.0, 2.0, 3.0]
    assert fit_line(x, [5.0, 8.0, 11.0]) == pytest.approx((2.0, 3.0))
    # A falling line is flat, and one that would start below zero starts there.
    assert fit_line(x, [4.0, 3.0, 2.0]) == pytest.approx((3.0, 0.0))
    assert fit_line(x, [2.0, 5.0, 8.0]) == pytest.approx((0.0, 2.5))
    assert fit_line([1.0, 1.0, 1.0], x) == pytest.approx((2.0, 0.0))


def test_passes_tell_what_each_costs_from_its_requests() -> None:
    # A line through all of them, however they are spread over steps, one of which had none.
    rows = [decodes((1, 9, 5.0), (2, 9, 7.0)), decodes(), decodes((8, 9, 19.0))]
    assert fit_decodes(rows) == pytest.approx((3.0, 2.0))
    # Passes of one size cost their mean; no cost is negative.
    assert fit_decodes([decodes((4, 9, 5.0), (4, 9, 7.0))]) == pytest.approx((6.0, 0.0))
    assert fit_decodes([decodes((1, 9, 9.0), (3, 9, 7.0))]) == pytest.approx((8.0, 0.0))
    with pytest.raises(InputError, match="made no decode pass that could be measured"):
        fit_decodes([decodes()])


def write_run(folder: Path, *, num_steps: int = NUM_STEPS, **sections: dict) -> None:
    """One group of two responses per step: 3 tokens each, from step 10 on 6."""
    rollout = {"groups_per_batch": 1, "samples_per_group": 2, "max_staleness": 1}
    recipe = make_recipe(
        folder / "model",
        rollout=rollout,
        trainer={"num_steps": num_steps},
        serving={"max_running_requests": 4},
        **sections,
    ).model_copy(update={"run_folder": str(folder)})
    with RunFolder(folder) as run_folder:
        run_folder.open(recipe)
    queue = make_queue(folder, batch=1, steps=num_steps)
    with MetricsWriter(folder / "metrics.jsonl") as metrics:
        for version in range(num_steps):
            queue.announce(version)
            group = queue.admit(make_task(version))
            generate(queue, group, version=version, num_tokens=3 if version < 10 else 6)
            queue.make_ready(group, {})
            queue.take(version)
            metrics.step(make_row(version + 1))
        dropped = queue.admit(make_task(99)) if queue.can_admit() else None
        assert dropped is None, "the run is over"
    queue.journal.close()


def test_lengths_are_those_of_the_groups_in_the_order_of_admission(tmp_path: Path) -> None:
    write_run(tmp_path)
    lengths = measured_lengths(read_lengths(JournalReader(tmp_path / "journal.sqlite")))
    assert lengths.of_group(9, 2) == [3, 3] and lengths.of_group(10, 3) == [6, 6, 6]
    # After the last one comes the first again.
    assert lengths.of_group(NUM_STEPS, 2) == [3, 3]
    assert (lengths.prompt_tokens, lengths.longest) == (3.0, 6)
    # A request holds its prompt and, on average, half of a length drawn by length.
    assert Lengths([[3, 3]], 3.0).tokens_held == pytest.approx(3.0 + 1.5)


def test_the_controllers_own_time_is_told_from_waits_for_a_server() -> None:
    # Six groups of version 0, 10 ms apart but for the last, which waited for 2 s; then one of version 1.
    seconds = (0.0, 0.01, 0.02, 0.03, 0.04, 2.04)
    groups = [GroupLengths(0, 100.0 + at, None, 3, [5]) for at in seconds]
    groups.append(GroupLengths(1, 150.0, None, 3, [5]))
    assert admission_seconds(groups) == pytest.approx(0.01)
    assert admission_seconds(groups[-1:]) == 0.0


def test_groups_without_signal_count_with_their_lengths(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2)
    queue.announce(0)
    group = queue.admit(make_task())
    generate(queue, group, version=0)
    queue.drop(group, DropReason.NO_SIGNAL)
    queue.admit(make_task())  # Still open: nobody knows its length.
    queue.journal.close()
    (found,) = read_lengths(JournalReader(tmp_path / "journal.sqlite"))
    assert (found.dropped_for, found.response_tokens) == (DropReason.NO_SIGNAL, [3, 3])


def test_a_calibration_repeats_the_seconds_per_token_of_its_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    measured = measure(tmp_path)
    run = PlannedRun.of(measured.recipe, measured.costs, tokens_held=measured.lengths.tokens_held)
    steady = simulate(run, measured.lengths).steady()
    simulated = sum(s.request_seconds for s in steady) / sum(s.tokens_generated for s in steady)
    rows = [make_row(step) for step in range(4, NUM_STEPS - 1)]
    known = sum(row["requests_per_server"] for row in rows)
    assert simulated == pytest.approx(known / sum(row["rollout_tokens_per_second"] for row in rows), rel=0.03)
    assert f"measured in {NUM_STEPS} steps" in measured.costs.origin


def test_a_run_that_is_too_short_or_too_old_to_measure_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "short", num_steps=4)
    with pytest.raises(InputError, match="holds 4 steps; a calibration needs 8 or more"):
        measure(tmp_path / "short")
    write_run(tmp_path / "old")
    path = tmp_path / "old" / "metrics.jsonl"
    path.write_text(path.read_text().replace("decode_passes", "something_else"))
    with pytest.raises(InputError, match="made by this version of asyncrl"):
        measure(tmp_path / "old")
