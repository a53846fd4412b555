"""A run, by its folder: what it has measured and sampled by now, its model, its end."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError, RunFailed
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import ANY_STEP, read_recorded, read_responses
from asyncrl.launch.evaluated_models import newest_model
from asyncrl.launch.python.arguments import COUNT, FLAG, OPTION, PATH, PLACES, STEPS, checked, instance
from asyncrl.launch.python.live import LiveCell, Table, is_notebook, live_html
from asyncrl.launch.python.program import Program, pause
from asyncrl.readers.status import CurrentRun, cause_of, read_run
from asyncrl.recipe import Recipe
from asyncrl.run.folder import read_run_recipe
from asyncrl.run.metrics_file import MetricsFollower, Row
from asyncrl.run.status import is_running, read_status, this_host
from asyncrl.system.paths import expanded
from asyncrl.system.places import CALL, JOURNAL, METRICS

OUTPUT = "output.txt"
"""In RUN/call: what the run's process printed, of all starts from Python."""
RESPONSES_AT_ONCE = 512
_OWN_OPTIONS = {"json", "list", "out"}


class Run:
    @checked(folder=PATH)
    def __init__(self, folder: str | Path, *, program: Program | None = None) -> None:
        """The run in `folder`, whoever started it. Raises InputError for a folder without one."""
        self.folder = expanded(Path(folder)).absolute()
        self._own_program = program
        read_run_recipe(self.folder)
        self._follower = MetricsFollower(self.folder / METRICS)

    @property
    def _program(self) -> Program | None:
        """The run's process, in the process that has started it and not in a fork of it."""
        own = self._own_program
        return own if own is not None and own.is_ours() else None

    @property
    def recipe(self) -> Recipe:
        """Resolved: every key with its value."""
        return read_run_recipe(self.folder)

    @property
    def status(self) -> CurrentRun:
        """The state of all parts: step, time left, queue, servers, alarms, warnings."""
        return read_run(self.folder, self._follower.read())

    @property
    def state(self) -> str:
        """starting, evaluating, training, finished, stopped, failed, no longer running, not started."""
        return self.status.state

    @property
    def is_running(self) -> bool:
        if self._program is not None:
            return self._program.is_running()
        status = read_status(self.folder)
        return status is not None and is_running(status)

    @property
    def metrics(self) -> Table:
        """A row for each step that was trained."""
        return _table(self._follower.read().steps)

    @property
    def evaluations(self) -> Table:
        """A row for each evaluation of held-out tasks and of each benchmark."""
        found = self._follower.read()
        return _table([*found.evaluations, *found.benchmarks])

    @property
    def model_path(self) -> Path:
        """The Hugging Face folder of the newest checkpoint, which is exported first where a stopped run did
        not. Raises InputError where there is none yet."""
        found = newest_model(self.folder)
        if found is None:
            raise InputError(
                f"{self.folder} has no checkpoint yet: one is made every trainer.checkpoint_every_steps "
                f"({self.recipe.trainer.checkpoint_every_steps}) and at the end."
            )
        return found

    @property
    def output(self) -> str:
        """The text that the run's process printed; empty for one that the command line started."""
        path = self.folder / CALL / OUTPUT
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @checked(
        step=STEPS.or_none(),
        correct=FLAG.or_none(),
        contains=instance(str, "text").or_none(),
        dropped=FLAG,
        limit=COUNT.or_none(),
    )
    def trajectories(
        self,
        step: int | tuple[int, int] | None = None,
        *,
        correct: bool | None = None,
        contains: str | None = None,
        dropped: bool = False,
        limit: int | None = 1000,
    ) -> Table:
        """Responses that were trained, with their verdicts, in order of admission.

        `step` counts from 1, a pair is first and last; `correct` keeps those of that verdict, `contains`
        those with the text; `dropped` adds groups that were dropped because all had the same reward; `limit`
        rows at most, None for all. Texts that were compacted (replay.keep_steps) are left out. Raises
        InputError, also for steps of which none is trained yet.
        """
        self._check_trained(step)
        journal = JournalReader(self.folder / JOURNAL)
        found: list[dict[str, Any]] = []
        for row in self._responses(journal, _steps(step), dropped):
            is_wanted = correct is None or (row["outcome"] == "correct") == correct
            if is_wanted and (contains is None or contains in row["response"]):
                found.append(row)
                if limit is not None and len(found) >= limit:
                    break
        return Table(found)

    def _check_trained(self, step: int | tuple[int, int] | None) -> None:
        first, last = _steps(step)
        if first > last:
            raise InputError(f"step is {step}, expected the first step and then the last.")
        rows = self._follower.read().steps
        trained = rows[-1]["step"] if rows else 0
        if step is not None and first > trained:
            known = f"a step of 1 to {trained}" if trained else "none: no step is trained yet"
            raise InputError(f"step is {step}, expected {known}.")

    def _responses(
        self, journal: JournalReader, steps: tuple[int, int], has_dropped: bool
    ) -> Iterator[dict[str, Any]]:
        names = [each.trajectory_id for each in read_recorded(journal, steps=steps, has_dropped=has_dropped)]
        for first in range(0, len(names), RESPONSES_AT_ONCE):
            for each in read_responses(journal, names[first : first + RESPONSES_AT_ONCE]):
                yield {
                    "trajectory_id": each.trajectory_id,
                    "step": each.step,
                    "task": each.task_id,
                    "prompt": each.prompt,
                    "response": each.text,
                    "outcome": each.outcome,
                    "reward": each.reward,
                    "answer": each.extracted,
                    "detail": each.detail,
                }

    @checked(benchmarks=PATH, at=PLACES, k=COUNT.or_none(), options=OPTION)
    def evaluate(
        self,
        *benchmarks: str | Path,
        at: str | int | Sequence[str | int] = ("base", "last"),
        k: int | None = None,
        **options: Any,
    ) -> Table:
        """`asyncrl eval`: the run's models side by side on benchmarks, by name or files of rows; without any
        on its held-out tasks. A row for each benchmark and model. `options` are those of the command, such as
        num_tasks=100 or regrade=True.

        Raises InputError and RunFailed.
        """
        if taken := sorted(options.keys() & _OWN_OPTIONS):
            raise InputError(f"{taken[0]} is given, but the result is what evaluate returns. Leave it out.")
        places = [at] if isinstance(at, str | int) else at
        given = {"at": ",".join(map(str, places)), "k": k, **options}
        with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
            result = Path(folder) / "result.json"
            names = [str(name.absolute()) if isinstance(name, Path) else name for name in benchmarks]
            words = ["eval", str(self.folder), *names, *_flags(given), f"--out={result}"]
            program = Program(words, Path(folder) / OUTPUT)
            try:
                while program.is_running():
                    program.show_news()
                    pause()
            except KeyboardInterrupt:
                program.stop()
                raise
            program.show_news()
            program.end()
            if not result.exists():
                raise RunFailed("the evaluation was stopped before it had a result.")
            return _evaluated(json.loads(result.read_text(encoding="utf-8")))

    @checked(quiet=FLAG)
    def wait(self, *, quiet: bool = False) -> "Run":
        """Returns once the run has ended or was stopped; until then shows its live line, in a notebook a
        curve. An interrupt (Ctrl-C, the notebook's button) stops the run, then raises KeyboardInterrupt.

        Raises RunFailed with the cause of a failure, InputError for one that the user can correct.
        """
        cell = LiveCell() if not quiet and is_notebook() else None
        try:
            while self.is_running:
                self._show(cell, quiet=quiet)
                pause()
        except KeyboardInterrupt:
            self.stop()
            self._show(cell, quiet=quiet)
            raise
        self._show(cell, quiet=quiet)
        if self._program is not None:
            self._program.end(cause_of(self.folder))
        elif self.state == "failed":
            raise RunFailed(cause_of(self.folder) or f"{self.folder} has failed.")
        return self

    def stop(self) -> None:
        """Stops the run as Ctrl-C does: the current step ends and is saved. `asyncrl.resume` continues it.
        Raises InputError for a run of another machine."""
        if self._program is not None:
            self._program.stop()
            return
        status = read_status(self.folder)
        if status is None or not self.is_running:
            return
        if status["host"] != this_host():
            raise InputError(f"{self.folder} runs on {status['host']}: stop it there.")
        os.kill(status["pid"], signal.SIGINT)
        while self.is_running:
            pause()

    def _show(self, cell: LiveCell | None, *, quiet: bool) -> None:
        if cell is not None:
            cell.show(self._repr_html_())
        elif not quiet and self._program is not None:
            self._program.show_news()

    def __reduce__(self) -> tuple[type["Run"], tuple[Path]]:
        """For other processes, which look at the run by its folder."""
        return Run, (self.folder,)

    def __repr__(self) -> str:
        status = self.status
        return f"Run({str(self.folder)!r}, {status.state}, step {status.step} of {status.total_steps})"

    def _repr_html_(self) -> str:
        metrics = self._follower.read()
        return live_html(read_run(self.folder, metrics), metrics)


def _table(rows: Sequence[Row]) -> Table:
    return Table({"step": row["step"], **row} for row in rows)


def _evaluated(found: dict[str, Any]) -> Table:
    """A row for each benchmark and model, without the results of single tasks."""
    return Table(
        {
            "benchmark": each["benchmark"],
            "model": model,
            **{name: value for name, value in result.items() if not isinstance(value, list | dict)},
        }
        for each in found["benchmarks"]
        for model, result in each["results"].items()
    )


def _steps(step: int | tuple[int, int] | None) -> tuple[int, int]:
    match step:
        case None:
            return ANY_STEP
        case (first, last):
            return int(first), int(last)
        case _:
            return int(step), int(step)


def _flags(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value is None or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        yield flag if value is True else f"{flag}={value}"
