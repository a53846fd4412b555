"""Kills, stops and corrupts parts of a real run at random times, then audits its journal: `make chaos`.

Real SGLang servers and a real Megatron-core trainer learn to write sevens from nothing. Prints one line per
fault, and in the end what it cost; exits 1 when a finished trajectory was lost, a group was trained twice,
a committed batch changed, or the run did not reach the quality of an undisturbed one.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.whole_run import WholeRun, survivors

NUM_STEPS_AHEAD = 100_000
"""More than any run here makes: the run is ended by Ctrl-C, then finished with a smaller number."""
RECOVERY_SECONDS = 150.0
MIN_SHARE_CORRECT = 0.95


@dataclass
class Audit:
    """What the journal has promised so far; each look checks that nothing promised is gone."""

    run: WholeRun
    steps: dict[int, int] = field(default_factory=dict)
    """Group -> step of every committed batch."""
    finished: dict[str, str] = field(default_factory=dict)
    """Finished trajectory -> outcome."""
    faults: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Compares with the last look, and remembers this one."""
        (version,) = self.run.query("SELECT coalesce(max(version), 0) FROM commits")[0]
        steps = dict(self.run.query(f"SELECT group_id, step FROM groups WHERE step < {version}"))
        self._compare("the step of group", self.steps, steps)
        finished = dict(
            self.run.query("SELECT trajectory_id, outcome FROM trajectories WHERE outcome IS NOT NULL")
        )
        self._compare("the verdict of trajectory", self.finished, finished)
        self.steps, self.finished = steps, finished
        uneven = self.run.query(
            f"SELECT step, count(*) FROM groups WHERE step < {version} GROUP BY step HAVING count(*) != 8"
        )
        self.faults += [f"step {step} has {count} groups, expected 8" for step, count in uneven]

    def _compare(self, what: str, before: dict, after: dict) -> None:
        for key, value in before.items():
            if after.get(key) != value:
                self.faults.append(f"{what} {key} was {value!r} and is now {after.get(key)!r}")

    def tokens_a_snapshot_would_lose(self) -> int:
        """Tokens that exist only since the last checkpoint: lost where the queue is part of the snapshot."""
        (version,) = self.run.query("SELECT coalesce(max(version), 0) FROM commits")[0]
        sql = (
            "SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING "
            f"(trajectory_id) JOIN groups USING (group_id) WHERE step IS NULL OR step >= {version}"
        )
        return int(self.run.query(sql)[0][0])


class Monkey:
    """Breaks one part at a time. Each method returns what it did, or None when the part is not there."""

    def __init__(self, run: WholeRun, chance: random.Random) -> None:
        self.run, self.chance = run, chance

    def kill_a_server(self) -> str | None:
        return self._signal("sglang.launch_server", signal.SIGKILL)

    def kill_the_trainer(self) -> str | None:
        return self._signal("asyncrl.trainer.main", signal.SIGKILL)

    def kill_a_verifier_worker(self) -> str | None:
        return self._signal("verifiers", signal.SIGKILL)

    def stop_a_server(self) -> str | None:
        return self._signal("sglang.launch_server", signal.SIGSTOP)

    def stop_the_trainer(self) -> str | None:
        return self._signal("asyncrl.trainer.main", signal.SIGSTOP)

    def kill_the_controller(self) -> str | None:
        family = self.run.family()
        self.run.kill(signal.SIGKILL)
        self.run.finish()
        left = survivors(family)
        self.run.start()
        return f"killed the controller; {len(left)} processes outlived it"

    def flip_a_bit_of_a_publication(self) -> str | None:
        files = list((self.run.run_folder / "publications").glob("*/*.safetensors"))
        if not files:
            return None
        path = max(files, key=lambda file: file.stat().st_mtime)
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            place = self.chance.randrange(path.stat().st_size // 2, path.stat().st_size)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << self.chance.randrange(8)]))
            return f"flipped a bit of {path.parent.name}/{path.name}"
        return None

    def _signal(self, word: str, number: signal.Signals) -> str | None:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            launcher = psutil.Process(self.run.process.pid)
            found = [child for child in launcher.children() if any(word in part for part in child.cmdline())]
            if found:
                victim = self.chance.choice(found)
                victim.send_signal(number)
                return f"{number.name} to {word} ({victim.pid})"
        return None


def pause(seconds: float, run: WholeRun) -> None:
    """Lets the run go on for a while; an end that nobody asked for stops the whole."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if run.process.poll() is not None:
            raise SystemExit(f"the run ended by itself ({run.process.returncode}):\n{run.output()[-4000:]}")
        time.sleep(0.05)


def recover(run: WholeRun, num_steps: int) -> float:
    """Seconds until the run has made another step."""
    began = time.monotonic()
    while len(run.steps()) <= num_steps:
        if time.monotonic() - began > RECOVERY_SECONDS:
            raise SystemExit(f"no step within {RECOVERY_SECONDS:g} s:\n{run.output()[-4000:]}")
        pause(0.1, run)
    return time.monotonic() - began


def disturb(run: WholeRun, audit: Audit, *, num_faults: int, seed: int) -> list[int]:
    """Breaks the run `num_faults` times; the tokens that each crash would cost with snapshots."""
    chance = random.Random(seed)
    monkey = Monkey(run, chance)
    kinds: list[tuple[Callable[[], str | None], int]] = [
        (monkey.kill_a_server, 3),
        (monkey.kill_the_trainer, 3),
        (monkey.kill_the_controller, 2),
        (monkey.kill_a_verifier_worker, 1),
        (monkey.stop_a_server, 1),
        (monkey.stop_the_trainer, 1),
        (monkey.flip_a_bit_of_a_publication, 2),
    ]
    costs: list[int] = []
    done = 0
    while done < num_faults:
        # Sometimes while the last fault is still being mended, sometimes long after.
        pause(chance.choice([0.2, 1.0, 3.0]) * chance.random(), run)
        (act,) = chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
        cost = audit.tokens_a_snapshot_would_lose()
        what = act()
        if what is None:
            continue
        done += 1
        costs.append(cost)
        seconds = recover(run, len(run.steps())) if chance.random() < 0.7 else None
        audit.look()
        mended = "not waited for" if seconds is None else f"next step after {seconds:5.1f} s"
        print(f"{done:4d}/{num_faults}  {what:60s} {mended}  {len(audit.faults)} faults", flush=True)
    recover(run, len(run.steps()))
    return costs


def finish(run: WholeRun) -> None:
    """Ctrl-C, then the same run with few steps more, to its end."""
    run.kill(signal.SIGINT)
    run.finish(seconds=60.0)
    (version,) = run.query("SELECT coalesce(max(version), 0) FROM commits")[0]
    run.set("trainer.num_steps", version + 8)
    if run.start().finish() != 0:
        raise SystemExit(f"the run did not finish:\n{run.output()[-4000:]}")


def chaos(folder: Path, *, num_faults: int, seed: int) -> list[str]:
    """Runs, disturbs and audits; the faults found."""
    run = WholeRun(
        folder,
        trainer={
            "num_steps": NUM_STEPS_AHEAD,
            "learning_rate": 3e-3,
            "checkpoint_every_steps": 10,
            "step_timeout_seconds": 20.0,
        },
        serving={"num_servers": 2, "request_timeout_seconds": 15.0},
        verifying={"num_workers": 2},
    ).start()
    audit, began = Audit(run), time.monotonic()
    try:
        run.wait_for_step(3)
        costs = disturb(run, audit, num_faults=num_faults, seed=seed)
        finish(run)
    finally:
        # The kernel ends what the controller started.
        with contextlib.suppress(ProcessLookupError):
            run.kill(signal.SIGKILL)
    audit.look()
    counters = dict(run.query("SELECT name, value FROM counters"))
    accounted = sum(value for name, value in counters.items() if name.startswith("tokens_dropped"))
    accounted += counters["tokens_trained"]
    queued = run.query(
        "SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING (trajectory_id) "
        "JOIN groups USING (group_id) WHERE state NOT IN ('trained', 'dropped')"
    )[0][0]
    if counters["tokens_generated"] != accounted + queued:
        audit.faults.append(f"conservation: {counters}, {queued} tokens queued")
    after = run.evaluation("after")["greedy_accuracy"]
    if after < MIN_SHARE_CORRECT:
        audit.faults.append(f"greedy accuracy after it all is {after}, expected {MIN_SHARE_CORRECT}")
    rate = counters["tokens_generated"] / (time.monotonic() - began)
    print(f"{num_faults} faults in {time.monotonic() - began:.0f} s; greedy accuracy {after:.3f}")
    print(f"tokens generated {counters['tokens_generated']}, trained {counters['tokens_trained']}")
    print(f"finished trajectories lost or changed, groups trained twice: {len(audit.faults)}")
    # What a stream has not delivered when its server dies is at most one chunk per request.
    print(
        f"a snapshot of trainer and queue would have lost {sum(costs) / len(costs):.0f} tokens per crash "
        f"({sum(costs) / len(costs) / rate:.1f} s of generation); here at most a chunk of what streams"
    )
    return audit.faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        faults = chaos(Path(folder), num_faults=arguments.faults, seed=arguments.seed)
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
