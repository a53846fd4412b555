"""Kills, stops and corrupts parts of real runs at random times, then audits their journals: `make chaos`.

Real SGLang servers and a real Megatron-core trainer learn from nothing, in three kinds of runs (`kinds.py`):
of one turn, of turns with an environment and the tool python, of an agent. Each has a share of the faults;
`--kind` plays one of them alone. Where this machine lets us mount, the run of one turn writes to two small
disks, one of them under its journal alone. Both fill up: the run must end with a sentence that says so, and
continue when there is room. Prints one line per fault, then what it cost; exits 1 when a finished trajectory
or a sampled token was lost or changed, a group was trained twice, a committed batch changed, or a run did not
reach the quality of an undisturbed one.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from audit import Audit
from fakes.small_disk import MountsRefused, SmallDisk, private_mounts
from fakes.whole_run import WholeRun
from kinds import KINDS, Kind

RECOVERY_SECONDS = 400.0
"""Far more than a recovery takes on a machine with nothing else to do."""
FINISH_SECONDS = 1200.0
LAST_STEPS = 8
"""After the last fault."""
DISK_BYTES = 512 * 2**20
HAS_MOUNTS = "--has-private-mounts"


def pause(seconds: float, run: WholeRun) -> None:
    """Lets the run train for a while; an end that nobody asked for stops the whole."""
    deadline = time.monotonic() + seconds
    assert run.process is not None
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
    kind: Kind, run: WholeRun, audit: Audit, disks: dict[str, SmallDisk], *, num_faults: int, seed: int
) -> list[int]:
    """Breaks the run `num_faults` times; the tokens that each crash would cost with snapshots."""
    chance = random.Random(seed)
    kinds = kind.monkey(run, chance, disks).faults()
    untried = [act for act, _ in kinds]
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
        reward = statistics.fmean(row["reward_mean"] for row in run.steps()[-LAST_STEPS:])
        state = f"{recovery:22s}  reward {reward:4.2f}  {len(audit.faults)} faults"
        print(f"{done:4d}/{num_faults}  {what:60s} {state}", flush=True)
    recover(run, len(run.steps()))
    return costs


def finish(kind: Kind, run: WholeRun) -> None:
    """Ctrl-C, then the same run with few steps more, to its end."""
    run.kill(signal.SIGINT)
    run.finish(seconds=120.0)
    (version,) = run.query("SELECT coalesce(max(version), 0) FROM commits")[0]
    run.set("trainer.num_steps", max(version + LAST_STEPS, kind.least_steps))
    if run.start().finish(seconds=FINISH_SECONDS) != 0:
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


def chaos(kind: Kind, folder: Path, *, num_faults: int, seed: int, has_mounts: bool) -> list[str]:
    """Runs, disturbs and audits; the faults found."""
    has_disks = has_mounts and kind.fills_disks
    disks = {"run": SmallDisk(folder / "run", size_bytes=DISK_BYTES)} if has_disks else {}
    run = kind.make(folder).start()
    audit, began = Audit(run, kind.may_abandon), time.monotonic()
    try:
        run.wait_for(lambda: len(run.steps()) >= 3, "step 3", seconds=RECOVERY_SECONDS)
        if has_disks:
            disks |= small_disks(run)
        costs = disturb(kind, run, audit, disks, num_faults=num_faults, seed=seed)
        finish(kind, run)
        return report(kind, run, audit, costs, seconds=time.monotonic() - began)
    finally:
        # The kernel ends what the controller started.
        with contextlib.suppress(ProcessLookupError):
            run.kill(signal.SIGKILL)
        for disk in disks.values():
            disk.unmount()


def share_correct(run: WholeRun) -> float:
    """Greedy, on held-out tasks; without such, sampled in the steps after the last fault."""
    if run.has_heldout():
        return float(run.evaluation("after")["greedy_accuracy"])
    return statistics.fmean(row["correct_mean"] for row in run.steps()[-LAST_STEPS:])


def report(kind: Kind, run: WholeRun, audit: Audit, costs: list[int], *, seconds: float) -> list[str]:
    """What it cost; the faults found."""
    audit.look()
    assert audit.last is not None
    counters, answered = audit.last.counters, len(audit.last.answered)
    after = share_correct(run)
    if after < kind.min_share_correct:
        audit.faults.append(f"the share of correct answers is {after}, expected {kind.min_share_correct}")
    outcomes = list(audit.last.verdicts.values())
    rate = counters["tokens_generated"] / seconds
    print(f"{kind.name}: {len(costs)} faults in {seconds:.0f} s; {after:.3f} of the answers are correct")
    print(f"tokens generated {counters['tokens_generated']}, trained {counters['tokens_trained']}")
    print(f"{answered} turns answered, {len(audit.last.calls)} replies to agents", end=", ")
    print(f"{outcomes.count('fault')} of {len(outcomes)} trajectories without a verdict", end=", ")
    print(f"{audit.num_abandoned} conversations abandoned at restarts")
    print(f"tokens and finished trajectories lost or changed, groups trained twice: {len(audit.faults)}")
    # What a stream has not delivered when its server dies is at most one chunk per request.
    print(
        f"a snapshot of trainer and queue would have lost {sum(costs) / len(costs):.0f} tokens per crash "
        f"({sum(costs) / len(costs) / rate:.1f} s of generation); here at most a chunk of what streams"
    )
    return [f"{kind.name}: {fault}" for fault in audit.faults]


def shares(num_faults: int, named: str | None) -> list[tuple[Kind, int]]:
    """How many faults each kind of run gets: all those of the one that is named, else by their shares."""
    chosen = [kind for kind in KINDS if named in (None, kind.name)]
    whole = sum(kind.share for kind in chosen)
    counts = [int(num_faults * kind.share / whole) for kind in chosen]
    counts[0] += num_faults - sum(counts)
    return [(kind, count) for kind, count in zip(chosen, counts, strict=True) if count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], help="default: a share of each")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(HAS_MOUNTS, action="store_true", help="(set by this command itself)")
    arguments = parser.parse_args()
    if not arguments.has_private_mounts:
        try:
            command = [*private_mounts(), sys.executable, str(Path(__file__)), *sys.argv[1:], HAS_MOUNTS]
        except MountsRefused as refusal:
            print(f"without full disks: {refusal}", flush=True)
        else:
            # What is mounted from here on is seen by nobody else and gone with the last process.
            os.execvp(command[0], command)
    print(f"seed {arguments.seed}", flush=True)
    faults: list[str] = []
    for kind, num_faults in shares(arguments.faults, arguments.kind):
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            faults += chaos(
                kind,
                Path(folder),
                num_faults=num_faults,
                seed=arguments.seed,
                has_mounts=arguments.has_private_mounts,
            )
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
