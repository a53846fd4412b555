"""Part `handover`: trainer and server share a device; the server sleeps while the trainer steps."""

import subprocess
import threading
from pathlib import Path

from fakes.base_model import write_base_model
from fakes.whole_run import WholeRun

from tests.benchmarks.acceptance.checks import NOT_RUN, Check, Checks, Row, Setting, end
from tests.benchmarks.acceptance.models import SMALL
from tests.benchmarks.acceptance.runs import check_books, check_mismatch, finish, shown
from tests.benchmarks.acceptance.server_log import GIVES, TAKES, num_calls

NUM_STEPS = 6
RUN_SECONDS = 170.0
LOOK_SECONDS = 0.2
CACHE_TOKENS = 262_144
CACHE_MIB = 256
"""Its keys and values, which a sleep must be seen to give back."""


class MemoryWatch:
    """Memory in use on the first GPU by nvidia-smi, while a run lasts whose servers write to `logs`."""

    def __init__(self, logs: Path) -> None:
        self.awake: list[int] = []
        """MiB, while no server sleeps that has slept once: they hold their caches."""
        self.asleep: list[int] = []
        """MiB, between a server's sleep and its waking."""
        self._logs = logs
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            before, used = self._calls(), used_mib()
            gave, took = self._calls()
            # A call in between may lie before or behind the look.
            if before == (gave, took) and gave:
                (self.asleep if gave > took else self.awake).append(used)

    def _calls(self) -> tuple[int, int]:
        return num_calls(self._logs, GIVES), num_calls(self._logs, TAKES)

    def check(self, check: Check) -> None:
        """Raises ValueError unless the GPU was seen to have a cache less in use while the server slept."""
        check.require(bool(self.asleep and self.awake), "memory was never looked at on both sides of a sleep")
        fewest, most = min(self.asleep), max(self.awake)
        check.figure = f"{fewest} MiB in use while it slept, {most} MiB while it was awake"
        check.require(most - fewest >= CACHE_MIB, f"less than its cache of {CACHE_MIB} MiB came back")


def used_mib() -> int:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def make_run(setting: Setting) -> WholeRun:
    sizes = {name: size for name, size in SMALL.items() if "token" not in name and name != "vocab_size"}
    run = WholeRun(
        setting.folder,
        model={"dtype": setting.dtype},
        placement={"colocated": True, "device": setting.device},
        serving={"max_total_tokens": CACHE_TOKENS if setting.on_gpu else 8192},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3},
        evaluation={"num_tasks": 8, "samples_per_task": 1},
    )
    write_base_model(setting.folder / "model", **sizes)
    return run


def work(checks: Checks, setting: Setting) -> None:
    run, logs = make_run(setting), setting.folder / "run" / "logs"
    watch = MemoryWatch(logs)
    advice = "Give trainer and servers GPUs of their own (placement.colocated: false) until this passes."
    with checks.row("a run on a shared device ends well", advice) as check:
        if setting.on_gpu:
            with watch:
                finish(run, num_steps=NUM_STEPS, seconds=RUN_SECONDS, check=check)
        else:
            finish(run, num_steps=NUM_STEPS, seconds=10 * RUN_SECONDS, check=check)
        check.figure += shown(
            run.steps(), {"train_seconds": "train {:.2f} s", "wait_seconds": "wait {:.2f} s"}
        )
    with checks.row("the server was put to sleep before every batch", advice) as check:
        gave, took = num_calls(logs, GIVES), num_calls(logs, TAKES)
        check.figure = f"{gave} sleeps and {took} wake-ups in {NUM_STEPS} steps"
        check.require(gave >= NUM_STEPS and took >= NUM_STEPS - 1, "too few")
    what = "a sleeping server gives its memory back"
    if setting.on_gpu:
        with checks.row(what, advice) as check:
            watch.check(check)
    else:
        checks.add(Row(what, NOT_RUN, "needs a GPU", ""))
    with checks.row("log-probs after a wake-up are the trainer's", advice) as check:
        check_mismatch(run, setting, check)
    with checks.row("every token is accounted for", "Run `asyncrl journal` on the run's folder.") as check:
        check_books(run, check)


if __name__ == "__main__":
    end(work)
