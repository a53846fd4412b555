"""Costs and lengths read back from the folder of a run."""

import random
from pathlib import Path

import numpy as np
import pytest
from fakes.recipes import make_recipe
from fakes.records import generate, make_queue, make_task

from asyncrl.errors import InputError
from asyncrl.journal.lengths import GroupLengths, read_lengths
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.metrics_file import MetricsWriter, Row
from asyncrl.planning.lengths import MeasuredLengths
from asyncrl.planning.measured import (
    admission_seconds,
    fit_costs,
    fit_decodes,
    fit_line,
    fit_prefills,
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


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_the_costs_of_decoding_are_found_from_requests_and_tokens(tmp_path: Path, speed: float) -> None:
    rows = [make_row(step, speed=speed) for step in range(1, NUM_STEPS)]
    # What a trainer nearby does can be told from slow servers only where it does not always work.
    for row in rows[::3]:
        row.update(make_row(row["step"]), wait_seconds=0.9, train_seconds=0.0, publish_seconds=0.1)
        row["rollout_tokens_per_second"] *= 0.9 / (0.1 + 0.8)
    costs = fit_costs(rows, make_recipe(tmp_path), prompt_tokens=10.0, num_groups_begun=44)
    assert costs.decode_seconds == pytest.approx(FIXED, rel=0.05)
    assert costs.decode_seconds_per_request == pytest.approx(PER_REQUEST, rel=0.05)
    assert costs.decode_speed_during_training == pytest.approx(speed)
    # 22 steps of 11 tokens for 44 groups; as much faster as the rest, without the trainer nearby.
    faster = costs.decode_seconds / FIXED
    assert costs.prefill_pass_seconds == pytest.approx(faster * PREFILL)
    assert costs.prefill_group_seconds == pytest.approx(faster * 5.5 * PREFILL_TOKEN)


def test_training_costs_seconds_per_token_however_much_sequences_share(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    rows = [make_row(step) for step in range(1, NUM_STEPS)]
    for row in rows:
        row["num_tokens"] = 400.0 + 30.0 * (row["step"] % 5)
        # Each group's prompt of 10 tokens once, no response's last token; half of them are shared.
        num_groups = 32 / recipe.rollout.samples_per_group
        row["num_packed_tokens"] = 0.5 * (10 * num_groups + row["num_tokens"] - 32)
        row["train_seconds"] = 0.1 + 0.002 * row["num_packed_tokens"]
    costs = fit_costs(rows, recipe, prompt_tokens=10.0, num_groups_begun=1)
    assert (costs.train_seconds, costs.train_seconds_per_token) == pytest.approx((0.1, 0.001))


def test_a_line_is_fitted_without_negative_costs() -> None:
    x = np.array([1.0, 2.0, 3.0])
    assert fit_line(x, 2.0 + 3.0 * x) == pytest.approx((2.0, 3.0))
    # A falling line is flat, and one that would start below zero starts there.
    assert fit_line(x, 5.0 - x) == pytest.approx((3.0, 0.0))
    # (3 x - 1) / x is 2, 2.5 and 2.67.
    assert fit_line(x, 3.0 * x - 1.0) == pytest.approx((0.0, 2.5))
    assert fit_line(np.ones(3), x) == pytest.approx((2.0, 0.0))


def test_a_fitted_line_hardly_moves_for_steps_that_took_far_longer() -> None:
    x = np.arange(10.0, 30.0)
    y = 0.5 + 0.02 * x
    y[[0, 9, 17]] *= 4.0
    assert fit_line(x, y) == pytest.approx((0.5, 0.02), rel=0.02)
    weights = np.ones_like(x)
    weights[10:] = 1e-6
    other = np.where(weights == 1.0, 0.5 + 0.02 * x, 9.0)
    assert fit_line(x, other, weights) == pytest.approx((0.5, 0.02))


def test_passes_tell_what_each_costs_from_what_is_in_it() -> None:
    # A line through all of them, however they are spread over steps, one of which had none.
    rows = [prefills((1, 5.0), (2, 7.0)), prefills(), prefills((8, 19.0))]
    assert fit_prefills(rows) == pytest.approx((3.0, 2.0))
    # Passes of one size cost their mean; no cost is negative.
    assert fit_prefills([prefills((4, 5.0), (4, 7.0))]) == pytest.approx((6.0, 0.0))
    assert fit_prefills([prefills((1, 9.0), (3, 7.0))]) == pytest.approx((8.0, 0.0))
    # (1 x 1 + 3 x 9) / (1 + 9)
    assert fit_prefills([prefills((1, 1.0), (3, 9.0))]) == pytest.approx((0.0, 2.8))
    with pytest.raises(InputError, match="made no prefill pass that could be measured"):
        fit_prefills([prefills()])


def test_a_request_costs_what_it_holds_on_average_although_many_requests_are_young() -> None:
    # 2 + n + k / 10 seconds: by requests alone the line would be 10.7 + 0.75 n.
    held = {10: 100, 20: 150, 40: 160, 30: 190}
    points = [(n, k, 2.0 + n + 0.1 * k) for n, k in held.items()]
    # 600 tokens of 100 requests: 6 each.
    assert fit_decodes([decodes(*points[:2]), decodes(*points[2:])]) == pytest.approx((2.0, 1.0 + 0.1 * 6.0))
    # Where all are of one age nobody can tell, and need not.
    one_age = decodes(*((n, 5 * n, 2.0 + n + 0.1 * 5 * n) for n in (1, 2, 8)))
    assert fit_decodes([one_age]) == pytest.approx((2.0, 1.5))
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


def test_lengths_are_those_of_the_version_that_admitted(tmp_path: Path) -> None:
    write_run(tmp_path)
    lengths = measured_lengths(read_lengths(JournalReader(tmp_path / "journal.sqlite")))
    assert lengths.by_version[9] == [[3, 3]] and lengths.by_version[10] == [[6, 6]]
    # Versions that admitted nothing draw from the last one before.
    assert lengths.begin(random.Random(0))(1000, 3) == [6, 6, 6]
    assert (lengths.prompt_tokens, lengths.longest()) == (3.0, 6)
    # A request holds its prompt and, on average, half of a length drawn by length.
    assert MeasuredLengths({0: [[3, 3]]}, 3.0).tokens_held() == pytest.approx(3.0 + 1.5)


def test_each_group_of_a_version_comes_once_before_any_comes_again() -> None:
    groups = [[n] for n in range(1, 17)]
    draw = MeasuredLengths({0: groups, 1: [[99]]}, 0.0).begin(random.Random(0))
    first, second = ([draw(0, 1) for _ in groups] for _ in range(2))
    assert sorted(first) == sorted(second) == groups and first != second
    assert draw(1, 1) == [99]


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
    run = PlannedRun.of(measured.recipe, measured.costs, tokens_held=measured.lengths.tokens_held())
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
    path.write_text(path.read_text().replace("decode_held", "something_else"))
    with pytest.raises(InputError, match="made by this version of asyncrl"):
        measure(tmp_path / "old")
