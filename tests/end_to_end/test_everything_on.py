"""A run with all that chooses rows and tokens at once: each kind of process is killed, and nothing is lost.

Top-p, a curriculum, adaptive groups, two sources with weights (in the asynchronous run these follow the
signal), and two held-out sets with settings and a
schedule of their own.
"""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

from asyncrl.journal.conservation import Conservation, read_conservation
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import read_admissions, read_visits
from asyncrl.recipe.file import load_recipe
from asyncrl.records import Task, VerifierSpec
from asyncrl.run.metrics_file import read_metrics
from asyncrl.tasks.order import TaskOrder
from asyncrl.tasks.source_choice import make_source_choice

NUM_STEPS, GROUPS, SAMPLES, PILOT = 10, 4, 6, 2
SIZES = (18, 12)
GRADED = Path(__file__).with_name("graded.py")
SETS: dict[str, int] = {"close": 2, "far": 3}
"""Name -> steps between its evaluations."""


def everything_on(folder: Path, *, max_staleness: int) -> WholeRun:
    """Rows of the first stages are always or never solved: when the next one is added follows from the rows
    that were asked. Chance decides in the last stage alone."""
    folder.mkdir()
    run = WholeRun(
        folder,
        rollout={
            "groups_per_batch": GROUPS,
            "samples_per_group": SAMPLES,
            "pilot_samples": PILOT,
            "max_staleness": max_staleness,
            "top_p": 0.95,
            "top_k": 24,
        },
        data={
            "train": [
                {"path": str(folder / "first.jsonl"), "weight": 2},
                {"path": str(folder / "second.jsonl"), "weight": 1},
            ],
            # The signal of the last stage is of chance, and so would be the order of rows.
            "mixture": "signal" if max_staleness else "never",
            "selection": {
                "by": "curriculum",
                "column": "level",
                "stages": 3,
                "advance_at": 0.25,
                "advance_visits": 4,
            },
        },
        replay={"drops_no_signal": False},
        trainer={"num_steps": NUM_STEPS, "checkpoint_every_steps": 2, "keep_checkpoints": 3},
        verifying={"num_workers": 1},
        evaluation={
            "every_steps": 5,
            "num_tasks": 4,
            "samples_per_task": 1,
            "sets": [
                {
                    "name": "close",
                    "sources": str(folder / "close.jsonl"),
                    "every_steps": SETS["close"],
                    "samples_per_task": 3,
                    "temperature": 0.7,
                    "max_new_tokens": 5,
                    "stop": ["+"],
                },
                {
                    "name": "far",
                    "sources": [str(folder / "far.jsonl"), str(folder / "close.jsonl")],
                    "num_tasks": 4,
                    "every_steps": SETS["far"],
                    "template": "{{ question }}?=",
                    "verifier": "exact",
                },
            ],
        },
    )  # fmt: skip
    (folder / "graded.py").write_text(GRADED.read_text())
    for name, size, first in (("first", SIZES[0], 0), ("second", SIZES[1], 50)):
        _write_rows(folder / f"{name}.jsonl", range(first, first + size))
    _write_rows(folder / "close.jsonl", range(100, 106))
    _write_rows(folder / "far.jsonl", range(200, 206))
    return run


def _write_rows(path: Path, numbers: range) -> None:
    rows = []
    for index, number in enumerate(numbers):
        level = 3 * index // len(numbers)
        answer = "digit" if level == 2 else ("always", "never")[index % 2]
        rows.append(
            {"prompt": f"{number}=", "answer": answer, "level": level, "verifier": "./graded.py:Graded"}
        )
    path.write_text("\n".join(map(json.dumps, rows)))


def rows_asked(run: WholeRun) -> list[str]:
    return [task_id for (task_id,) in run.query("SELECT task_id FROM groups ORDER BY group_id")]


def rows_chosen_again(run: WholeRun) -> list[str]:
    """The choices of an order that was never interrupted, from the visits that the journal holds."""
    recipe = load_recipe(run.recipe_path)
    rows = {
        f"{name}:{line}": json.loads(text)
        for name in ("first", "second")
        for line, text in enumerate((run.folder / f"{name}.jsonl").read_text().split("\n"), start=1)
    }
    verifier = VerifierSpec("exact")
    levels = [float(row["level"]) for row in rows.values()]
    order = TaskOrder(
        [Task(name, row["prompt"], (1,), None, verifier) for name, row in rows.items()],
        seed=recipe.seed,
        is_shuffled=True,
        chooser=make_source_choice(recipe, SIZES, levels),
    )
    journal = JournalReader(run.run_folder / "journal.sqlite")
    order.recall((), read_visits(journal))
    admissions = enumerate(read_admissions(journal))
    return [order.next(position, each.version).task_id for position, each in admissions]


def check(run: WholeRun) -> None:
    """Checks a finished run, killed or not."""
    assert rows_asked(run) == rows_chosen_again(run)
    account = read_conservation(run.run_folder / "journal.sqlite")
    assert Conservation(account).missing_tokens() == 0
    assert account["generated"] == account["trained"] > 0
    states = run.query("SELECT state, count(*) FROM groups GROUP BY state")
    assert states == [("trained", NUM_STEPS * GROUPS)]
    sizes = Counter(run.query("SELECT count(*) FROM trajectories GROUP BY group_id"))
    assert set(sizes) <= {(PILOT,), (SAMPLES,)} and sizes[PILOT,] and sizes[SAMPLES,]
    assert run.query("SELECT count(*) FROM trajectories WHERE outcome = 'fault'") == [(0,)]
    by_source = Counter(name.partition(":")[0] for name in rows_asked(run))
    assert by_source["first"] > by_source["second"] > 0
    # Every sampled token has its kept set.
    lacking = (
        "SELECT count(*) FROM segments LEFT JOIN kept_sets USING (trajectory_id, position) WHERE kept IS NULL"
    )
    assert run.query(lacking) == [(0,)]
    check_evaluations(run)
    steps = read_metrics(run.run_folder / "metrics.jsonl").steps
    assert len(steps) == NUM_STEPS
    # Steps whose batch was given again, too.
    assert all(step["reflection_words_mean"] == 0.0 for step in steps)
    prefix = "response_tokens_mean_by_outcome_"
    shown = {(step["step"], name.removeprefix(prefix)) for step in steps for name in step if prefix in name}
    graded = "trajectories JOIN groups USING (group_id) WHERE outcome IS NOT NULL"
    assert shown == set(run.query(f"SELECT DISTINCT taken_version + 1, outcome FROM {graded}"))
    assert sum(step["pilots_stopped"] for step in steps) > 0


def check_evaluations(run: WholeRun) -> None:
    """Each evaluation once, at its schedule, with its settings."""
    rows = read_metrics(run.run_folder / "metrics.jsonl").benchmarks
    for name, every in SETS.items():
        during = [("during", step) for step in range(every, NUM_STEPS, every)]
        found = [(row["when"], row["step"]) for row in rows if row["benchmark"] == name]
        assert sorted(found) == sorted([("before", 0), *during, ("after", NUM_STEPS)])
    close = next(row for row in rows if row["benchmark"] == "close")
    far = next(row for row in rows if row["benchmark"] == "far")
    assert (close["temperature"], close["max_new_tokens"], close["num_faults"]) == (0.7, 5, 0)
    assert far["verifier"] == "exact" and far["num_tasks"] == 4
    lengths = run.query("SELECT name, max(num_tokens), count(DISTINCT sample) FROM evaluated GROUP BY name")
    assert {name: most for name, most, _ in lengths}["close"] <= 5
    assert {name: samples for name, _, samples in lengths}["close"] == 3
    graded = run.query("SELECT version, name, task_id, sample, count(*) FROM evaluated GROUP BY 1, 2, 3, 4")
    assert {count for *_, count in graded} == {1}
    assert {(version, name) for version, name, *_ in graded} >= {
        (row["step"], row["benchmark"]) for row in rows
    }


def kill_each_kind(run: WholeRun) -> None:
    """One kind after the other, each while the run makes its next step."""
    for word, step in (("sglang.launch_server", 1), ("verifiers", 3), ("asyncrl.trainer.main", 5), (None, 7)):
        run.wait_for_step(step)
        if word is not None:
            run.child(word).kill()
        else:
            # Launcher and controller are one process; the others die with it.
            run.kill(signal.SIGKILL)
            run.finish()
            asked = rows_asked(run)
            run.start()
            run.wait_for_step(step + 1)
            assert rows_asked(run)[: len(asked)] == asked


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_run_with_everything_on_survives_the_death_of_each_kind_of_process(
    tmp_path: Path, max_staleness: int
) -> None:
    run = everything_on(tmp_path / "killed", max_staleness=max_staleness).start()
    kill_each_kind(run)
    assert run.finish(seconds=600.0) == 0, run.output()
    check(run)
    if max_staleness == 0:
        undisturbed = everything_on(tmp_path / "undisturbed", max_staleness=0).start()
        assert undisturbed.finish(seconds=600.0) == 0, undisturbed.output()
        check(undisturbed)
        assert rows_asked(run) == rows_asked(undisturbed)
