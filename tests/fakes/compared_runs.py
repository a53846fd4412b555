"""Run folders to compare: their recipes, evaluations and costs are the test's, their files those of a run.

Task n of a held-out file is "heldout:n" and asks "n+n=". A right answer is "2n", a wrong one "7".
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asyncrl.evaluation.result import GradedResponse, Result, greedy_result, sampled_result
from asyncrl.evaluation.schedule import statements_of
from asyncrl.journal.connection import GENERATED, TRAINED, bump
from asyncrl.journal.starts import record_data
from asyncrl.journal.writer import Journal
from asyncrl.records import Score, Task, VerifierSpec
from asyncrl.run.metrics_file import MetricsWriter

STEP = {
    "step_seconds": 36.0,
    "rollout_tokens_per_second": 100.0,
    "num_tokens": 3000.0,
    "train_seconds": 10.0,
    "wait_seconds": 1.0,
}
RECIPE: dict[str, Any] = {
    "name": "sums",
    "seed": 0,
    "run_folder": "runs/sums",
    "model": {"path": "models/small", "context_tokens": 64},
    "algorithm": {"surrogate": "ppo_clip", "rejection": []},
    "trainer": {"num_steps": 4},
}


def write_run(
    folder: Path,
    greedy: Mapping[int, Sequence[float | None]],
    *,
    samples: Mapping[int, Sequence[Sequence[float]]] | None = None,
    recipe: Mapping[str, Any] | None = None,
    rows: str = "rows",
    first_task: int = 1,
    numbers: str = "{n}+{n}=",
    num_steps: int = 4,
    benchmark: Sequence[float | None] | None = None,
) -> Path:
    """`greedy` maps a version to the score of the most likely answer to each task, `samples` to those of the
    samples of each task. `rows` stands for what is in the held-out file; `numbers` is how it asks."""
    folder.mkdir(parents=True)
    whole = {**RECIPE, "run_folder": str(folder), **(recipe or {})}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    journal = Journal(folder / "journal.sqlite")
    record_data(journal, {"data.train": "train", "data.heldout": rows})
    journal.write(bump(GENERATED, 3600 * num_steps), bump(TRAINED, 3000 * num_steps))
    with MetricsWriter(folder / "metrics.jsonl", clock=lambda: 0.0) as metrics:
        for step in range(num_steps + 1):
            if step:
                metrics.step({"step": step, **STEP})
            if step in greedy:
                result = _result(greedy[step], (samples or {}).get(step, ()), first_task)
                tasks = _tasks(len(greedy[step]), first_task, numbers)
                journal.write(*statements_of(step, "held-out", tasks, result))
                when = "before" if not step else "after" if step == num_steps else "during"
                row = {"step": step, "when": when, "template": "none", **result.numbers()}
                metrics.evaluation(row)
        if benchmark is not None:
            result = _result(benchmark, (), 1)
            tasks = _tasks(len(benchmark), 1, numbers)
            journal.write(*statements_of(num_steps, "gsm8k", tasks, result))
            named = {"benchmark": "gsm8k", "source": "openai/gsm8k@abc main test", "template": "r1"}
            metrics.benchmark({"step": num_steps, "when": "after", **named, **result.row()})
    journal.close()
    return folder


def _tasks(num: int, first: int, numbers: str) -> list[Task]:
    return [
        Task(f"heldout:{n}", numbers.format(n=n), (1,), str(2 * n), VerifierSpec("math"))
        for n in range(first, first + num)
    ]


def _result(greedy: Sequence[float | None], samples: Sequence[Sequence[float]], first_task: int) -> Result:
    answers = [[_response(n, score)] for n, score in enumerate(greedy, start=first_task)]
    sampled = [[_response(n, score) for score in row] for n, row in enumerate(samples, start=first_task)]
    found = sampled_result(sampled, len(sampled[0])) if sampled else None
    return Result(greedy_result(answers), found, {}, answers, sampled)


def _response(number: int, score: float | None) -> GradedResponse:
    if score is None:
        return GradedResponse("", 1, (0,), Score("fault", None, None, None, "no sandbox", 0.0))
    said = str(2 * number) if score == 1.0 else "7"
    outcome = "correct" if score == 1.0 else "wrong"
    return GradedResponse(f"it is {said}", 4, (0,), Score(outcome, score, score, said, "", 0.0))
