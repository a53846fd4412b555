"""Kills, stops and corrupts parts of a real run at random times, then audits its journal: `make chaos`.

Real SGLang servers and a real Megatron-core trainer learn to write sevens from nothing. Where this machine
lets us mount, the run writes to two small disks, one of them under its journal alone. Both fill up: the run
must end with a sentence that says so, and continue when there is room. Prints one line per fault, then
what it cost; exits 1 when a finished trajectory was lost, a group was trained twice, a committed batch
changed, or the run did not reach the quality of an undisturbed one.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.processes import wait_for_end
from fakes.small_disk import MountsRefused, SmallDisk, private_mounts
from fakes.whole_run import WholeRun

NUM_STEPS_AHEAD = 100_000
"""More than any run here makes: the run is ended by Ctrl-C, then finished with a smaller number."""
RECOVERY_SECONDS = 150.0
MIN_SHARE_CORRECT = 0.95
FULL_DISK_SECONDS = 120.0
DISK_BYTES = 512 * 2**20
HAS_MOUNTS = "--has-private-mounts"


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
        query = f"SELECT group_id, taken_version + 1 FROM groups WHERE taken_version < {version}"
        steps = dict(self.run.query(query))
        self._compare("the step of group", self.steps, steps)
        finished = dict(
            self.run.query("SELECT trajectory_id, outcome FROM trajectories WHERE outcome IS NOT NULL")
        )
        self._compare("the verdict of trajectory", self.finished, finished)
        self.steps, self.finished = steps, finished
        uneven = self.run.query(
            f"SELECT taken_version + 1, count(*) FROM groups WHERE taken_version < {version} "
            "GROUP BY taken_version HAVING count(*) != 8"
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
            "(trajectory_id) JOIN groups USING (group_id) "
            f"WHERE taken_version IS NULL OR taken_version >= {version}"
        )
        return int(self.run.query(sql)[0][0])


class Monkey:
    """Breaks one part at a time. Each method returns what it did, or None when the part is not there."""

    def __init__(self, run: WholeRun, chance: random.Random, disks: dict[str, SmallDisk]) -> None:
        self.run, self.chance, self.disks = run, chance, disks

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
        left = wait_for_end(family, seconds=10.0)
        self.run.start()
        return f"killed the controller; {len(left)} processes outlived it"

    def fill_the_disk_of_the_journal(self) -> str:
        return self._fill("journal", said=["JournalError: The journal"])

    def fill_the_disk_of_the_run(self) -> str:
        # The other one where the run has not begun again since the last fault.
        return self._fill("run", said=["Free up disk space", "Free some"])

    def _fill(self, name: str, *, said: list[str]) -> str:
        disk, num_characters = self.disks[name], len(self.run.output())
        family, deadline = self.run.family(), time.monotonic() + FULL_DISK_SECONDS
        while self.run.process.poll() is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"the run continues with a full disk:\n{self.run.output()[-4000:]}")
            # Again and again: publications that are deleted make room.
            disk.fill()
            time.sleep(0.05)
        output = self.run.output()[num_characters:]
        is_said = any(words in output for words in said) and "Traceback" not in output
        if self.run.process.returncode not in (1, 2) or not is_said:
            raise SystemExit(f"the disk of the {name} was full: {self.run.process.returncode}\n{output}")
        left = wait_for_end(family, seconds=10.0)
        disk.clear()
        self.run.start()
        return f"filled the disk of the {name}; {len(left)} processes outlived the run"

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
            found = self.run.children(word)
            if found:
                victim = self.chance.choice(found)
                victim.send_signal(number)
                return f"{number.name} to {word} ({victim.pid})"
        return None


def pause(seconds: float, run: WholeRun) -> None:
    """Lets the run train for a while; an end that nobody asked for stops the whole."""
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


def disturb(
    run: WholeRun, audit: Audit, disks: dict[str, SmallDisk], *, num_faults: int, seed: int
) -> list[int]:
    """Breaks the run `num_faults` times; the tokens that each crash would cost with snapshots."""
    chance = random.Random(seed)
    monkey = Monkey(run, chance, disks)
    kinds: list[tuple[Callable[[], str | None], int]] = [
        (monkey.kill_a_server, 3),
        (monkey.kill_the_trainer, 3),
        (monkey.kill_the_controller, 2),
        (monkey.kill_a_verifier_worker, 1),
        (monkey.stop_a_server, 1),
        (monkey.stop_the_trainer, 1),
        (monkey.flip_a_bit_of_a_publication, 2),
    ]
    if disks:
        kinds += [(monkey.fill_the_disk_of_the_journal, 1), (monkey.fill_the_disk_of_the_run, 1)]
    untried = [kind for kind, _ in kinds]
    chance.shuffle(untried)
    costs: list[int] = []
    done = 0
    while done < num_faults:
        # Sometimes during the recovery from the last fault, sometimes long after.
        pause(chance.choice([0.2, 1.0, 3.0]) * chance.random(), run)
        # Each kind once, then by their shares; one that finds nothing to break now (no worker was started
        # since the last was killed) makes way for another.
        act = untried.pop() if untried else chance.choices(*zip(*kinds, strict=True))[0]
        cost = audit.tokens_a_snapshot_would_lose()
        what = act()
        if what is None:
            continue
        done += 1
        costs.append(cost)
        seconds = recover(run, len(run.steps())) if chance.random() < 0.7 else None
        audit.look()
        recovery = "not waited for" if seconds is None else f"next step after {seconds:5.1f} s"
        print(f"{done:4d}/{num_faults}  {what:60s} {recovery}  {len(audit.faults)} faults", flush=True)
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


def small_disks(run: WholeRun) -> dict[str, SmallDisk]:
    """Resumes the run, which has begun, with its journal on a disk of its own."""
    run.kill(signal.SIGINT)
    run.finish(seconds=60.0)
    disk = SmallDisk(run.folder / "journal_disk", size_bytes=DISK_BYTES)
    for path in run.run_folder.glob("journal.sqlite*"):
        shutil.move(path, disk.place)
    (run.run_folder / "journal.sqlite").symlink_to(disk.place / "journal.sqlite")
    run.start()
    return {"journal": disk}


def chaos(folder: Path, *, num_faults: int, seed: int, has_mounts: bool) -> list[str]:
    """Runs, disturbs and audits; the faults found."""
    disks = {"run": SmallDisk(folder / "run", size_bytes=DISK_BYTES)} if has_mounts else {}
    run = WholeRun(
        folder,
        trainer={
            "num_steps": NUM_STEPS_AHEAD,
            "learning_rate": 3e-3,
            "checkpoint_every_steps": 10,
            "step_timeout_seconds": 20.0,
        },
        serving={"num_servers": 2, "request_timeout_seconds": 15.0, "start_timeout_seconds": 60.0},
        verifying={"num_workers": 2},
    ).start()
    audit, began = Audit(run), time.monotonic()
    try:
        run.wait_for_step(3)
        if has_mounts:
            disks |= small_disks(run)
        costs = disturb(run, audit, disks, num_faults=num_faults, seed=seed)
        finish(run)
        return report(run, audit, costs, seconds=time.monotonic() - began)
    finally:
        # The kernel ends what the controller started.
        with contextlib.suppress(ProcessLookupError):
            run.kill(signal.SIGKILL)
        for disk in disks.values():
            disk.unmount()


def report(run: WholeRun, audit: Audit, costs: list[int], *, seconds: float) -> list[str]:
    """What it cost; the faults found."""
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
    rate = counters["tokens_generated"] / seconds
    print(f"{len(costs)} faults in {seconds:.0f} s; greedy accuracy {after:.3f}")
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
    parser.add_argument(HAS_MOUNTS, action="store_true", help="(set by this command itself)")
    arguments = parser.parse_args()
    if not arguments.has_private_mounts:
        try:
            command = [*private_mounts(), sys.executable, *sys.argv, HAS_MOUNTS]
        except MountsRefused as refusal:
            print(f"without full disks: {refusal}", flush=True)
        else:
            # What is mounted from here on is seen by nobody else and gone with the last process.
            os.execvp(command[0], command)
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        faults = chaos(
            Path(folder),
            num_faults=arguments.faults,
            seed=arguments.seed,
            has_mounts=arguments.has_private_mounts,
        )
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
