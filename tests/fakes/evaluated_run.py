"""Results as `asyncrl eval` keeps them in a run folder: two models, 16 samples of 12 tasks, all known."""

from pathlib import Path
from typing import Any

from asyncrl.journal.kept_answers import AnswerStore, ShownAnswer
from asyncrl.observe.metrics.sample_curves import Tally, curves_of
from asyncrl.system.places import ANSWERS

K = 16
BASE = [Tally(K, 1, ((15, 0), (1, 1)))] * 12
"""Solves every task, each rarely."""
TRAINED = [Tally(K, K, ((K, K),))] * 6 + [Tally(K, 0, ((K, 0),))] * 6
"""Solves half of the tasks, always."""


def row(tallies: list[Tally], name: str = "held-out") -> dict[str, Any]:
    curves = curves_of(tallies)
    avg, last = curves["pass"], K - 1
    return {
        "benchmark": name,
        "template": "r1",
        "num_tasks": len(tallies),
        "num_left_out": 0,
        "temperature": 1.0,
        "max_new_tokens": 64,
        "k": K,
        "avg_at_k": avg["mean"][0],
        "avg_low": avg["low"][0],
        "avg_high": avg["high"][0],
        "pass_at_k": avg["mean"][last],
        "pass_low": avg["low"][last],
        "pass_high": avg["high"][last],
        "avg_scores": [tally.passed()[0] for tally in tallies],
        "pass_scores": [tally.passed()[-1] for tally in tallies],
        "response_tokens_mean": 12.0,
        "cut_share": 0.0,
        "num_faults": 0,
        "tallies": [tally.as_json() for tally in tallies],
        "curves": curves,
        "answers": {
            "is_greedy": False,
            "num_tasks": len(tallies),
            "tasks": [answer(number, tally) for number, tally in enumerate(tallies)],
        },
    }


def answer(number: int, tally: Tally) -> ShownAnswer:
    """The first sample of a task, right where all are."""
    is_right = tally.num_correct == tally.num_samples
    outcome = "correct" if is_right else "wrong"
    return {
        "task_id": f"task:{number}",
        "prompt": f"{number} <b>?",
        "text": f"it is {outcome} <i>{number}",
        "extracted": outcome,
        "outcome": outcome,
        "correctness": float(is_right),
        "num_tokens": 12,
        "is_cut": False,
    }


def evaluate_run(folder: Path, *, last: str = "step 40 (last)") -> None:
    """Keeps results of both models, the trained one first."""
    with AnswerStore(folder / ANSWERS) as store:
        store.keep_result("held-out", "alike", "trained", last, row(TRAINED), num_samples=K)
        store.keep_result("held-out", "alike", "base", "base", row(BASE), num_samples=K)
