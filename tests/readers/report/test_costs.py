"""Hours, energy and money, from what starts used."""

import pytest

from asyncrl.journal.usage import Usage
from asyncrl.readers.report.costs import Prices, cost_of, energy_of, time_of

ONE_HOUR = [Usage("run", 3600.0, num_gpus=2), Usage("server 0", 3600.0, 7200.0, num_gpus=2)]


def test_energy_is_measured_where_every_start_read_its_counters() -> None:
    starts = {
        1.0: [Usage("run", 10.0), Usage("energy: package-0 0", 10.0, joules=5.0)],
        2.0: [Usage("run", 10.0), Usage("energy: package-0 0", 10.0, joules=7.0)],
    }
    energy = energy_of(starts, time_of(starts, [], 4), Prices())
    assert energy is not None and (energy.joules, energy.is_estimate) == (12.0, False)
    assert energy.parts[0].how.startswith("RAPL")


@pytest.mark.parametrize("second", [None, []], ids=["a counter that failed", "a start without counters"])
def test_energy_that_was_measured_in_part_is_estimated_whole(second: list[Usage] | None) -> None:
    lost = [Usage("energy: package-0 0", 10.0, joules=None)] if second is None else second
    starts = {
        1.0: [Usage("controller", 3600.0, 3600.0), Usage("energy: package-0 0", 10.0, joules=5.0)],
        2.0: [Usage("controller", 3600.0, 3600.0), *lost],
    }
    energy = energy_of(starts, time_of(starts, [], 4), Prices(watts_per_core=8.0))
    # Two CPU hours at 8 W.
    assert energy is not None and (energy.joules, energy.is_estimate) == (2 * 3600 * 8.0, True)
    assert (
        energy.parts[0].how
        == "ESTIMATE, not measured: 2 CPU hours of the run's processes x 8 W (--watts-per-core)"
    )


def test_gpus_that_no_counter_saw_are_estimated_beside_measured_processors() -> None:
    starts = {1.0: [*ONE_HOUR, Usage("energy: package-0 0", 3600.0, joules=100.0)]}
    energy = energy_of(starts, time_of(starts, [], 4), Prices(watts_per_gpu=500.0))
    assert energy is not None and energy.is_estimate
    assert [(part.part, part.joules, part.is_estimate) for part in energy.parts] == [
        ("processors", 100.0, False),
        ("GPUs", 2 * 3600 * 500.0, True),
    ]


def test_a_price_is_per_machine_gpu_or_core() -> None:
    time = time_of({1.0: ONE_HOUR}, [], 16)
    found = {per: cost_of(time, Prices(price_per_hour=3.0, per=per)) for per in ("machine", "gpu", "core")}
    assert {per: cost and cost.total for per, cost in found.items()} == {
        "machine": 3.0,
        "gpu": 6.0,
        "core": 48.0,
    }
    assert cost_of(time, Prices()) is None


def test_a_process_of_another_machine_leaves_the_cpu_hours_unknown() -> None:
    time = time_of({1.0: [*ONE_HOUR, Usage("server 1", 3600.0, None)]}, [], 4)
    assert time.cpu_hours is None and time.gpu_hours == 2.0
    assert [process.cpu_hours for process in time.processes] == [2.0, None]
    assert energy_of({1.0: ONE_HOUR}, time, Prices()) is None


def test_a_run_that_recorded_nothing_claims_nothing() -> None:
    time = time_of({}, [{"step_seconds": 2.0}], None)
    assert (time.wall_seconds, time.cpu_hours, time.gpu_hours, time.step_seconds) == (None, None, None, 2.0)
    assert energy_of({}, time, Prices()) is None
    assert cost_of(time, Prices(price_per_hour=1.0)) is None
