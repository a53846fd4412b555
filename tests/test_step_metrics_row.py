"""The row of a step."""

from typing import Any

import pytest

from asyncrl.replay.wire import TakeRequest
from asyncrl.step_metrics import Reading, StepReport


class Notebook:
    """Remembers the rows it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def step(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def evaluation(self, row: dict[str, Any]) -> None:
        raise AssertionError("a step is no evaluation")

    def note(self, text: str) -> None:
        raise AssertionError(text)


def test_a_trainer_idles_while_it_waits_for_a_batch_and_while_servers_drain() -> None:
    notebook = Notebook()
    # Two requests, 10 s apart.
    readings = iter([Reading(0.0, 0, 0, 0.0, 1), Reading(10.0, 500, 0, 9.0, 1)])
    report = StepReport(notebook, read=lambda: next(readings), pool_metrics=dict, heldout=list)
    report.asked(TakeRequest(0))
    report.given({"correct_mean": 0.5})
    metrics = {"wait_seconds": 1.0, "drain_seconds": 2.0, "publish_seconds": 0.5}
    report.asked(TakeRequest(1, step_metrics=metrics))
    (row,) = notebook.rows
    # (1 + 2) of 10 s; the server ran requests for 9 of them
    assert row["trainer_idle_share"] == pytest.approx(0.3)
    assert row["rollout_idle_share"] == pytest.approx(0.1)
    assert (row["step"], row["drain_seconds"], row["rollout_tokens_per_second"]) == (1, 2.0, 50.0)
