"""Runs per second of a small program on two cores: bare interpreters, bubblewrap, plain forks, and the
sandbox.

All are measured in turn, several rounds in one process, so that a busy machine slows them alike: read the
ratios, not the rates. Prints one line per way, then the ratios with their goals. Needs bubblewrap for its
comparison, and says so."""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.interpreter import find_interpreter
from sandbox.limits import Limits
from sandbox.pool import SandboxPool
from sandbox.result import Status
from sandbox.settings import SandboxSettings
from verifiers.code.verifier import CodeVerifier
from verifiers.verdict import Outcome

CORES = 2
SOURCE = "a, b = map(int, input().split())\nprint(a + b)\n"
STDIN, EXPECTED = b"3 4\n", b"7\n"
ROOT = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64".split()
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", *ROOT,
         "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]  # fmt: skip


def spawn(argv: list[str]) -> None:
    """One run in a new process; anything but the right answer stops the benchmark."""
    done = subprocess.run(argv, input=STDIN, capture_output=True, check=True)
    assert done.stdout == EXPECTED, done


def spawn_rate(argv: list[str], seconds: float) -> float:
    """Runs per second with one thread per core."""
    end = time.perf_counter() + seconds

    def work() -> int:
        count = 0
        while time.perf_counter() < end:
            spawn(argv)
            count += 1
        return count

    started = time.perf_counter()
    with ThreadPoolExecutor(CORES) as threads:
        counts = [threads.submit(work) for _ in range(CORES)]
        total = sum(count.result() for count in counts)
    return total / (time.perf_counter() - started)


def fork_figures(what: str, argument: float, processes: int) -> list[float]:
    """What fork_runs.py measures, in `processes` processes at once."""
    argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("fork_runs.py")), what, str(argument)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(processes)]
    return [float(process.communicate()[0]) for process in running]


async def async_rate(work: Callable[[], Awaitable[None]], seconds: float) -> float:
    """Runs per second with two coroutines per core, so that a worker never waits for the host."""
    end, count = time.perf_counter() + seconds, 0

    async def loop() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await work()
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(CORES * 2)))
    return count / (time.perf_counter() - started)


async def latency(work: Callable[[], Awaitable[None]], runs: int) -> list[float]:
    """Seconds of each of `runs` runs, one after the other."""
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        await work()
        found.append(time.perf_counter() - started)
    return found


async def measure(rounds: int, seconds: float) -> tuple[dict[str, float], float]:
    """(way -> median runs per second, median seconds of latency added to a plain fork)."""
    settings = SandboxSettings(workers=CORES)
    python = find_interpreter(settings.python, ()).executable
    bwrap = shutil.which("bwrap")
    tests = {"tests": [{"stdin": STDIN.decode(), "stdout": EXPECTED.decode()}]}
    reference = CodeVerifier().parse_reference(tests)
    rates: dict[str, list[float]] = {}
    added = []
    async with SandboxPool(settings) as sandbox:
        await sandbox.start()
        if sandbox.tier is None:
            raise SystemExit(f"no isolation on this machine: {sandbox.reasons}")
        print(
            f"tier {sandbox.tier.value}; cgroups bound {', '.join(sandbox.cgroup_controllers) or 'nothing'}"
        )
        commands = {
            fresh: replace(
                await sandbox.build(SOURCE, lang="python", limits=Limits(), fresh=fresh), stdin=STDIN
            )
            for fresh in (False, True)
        }
        verifiers = {fresh: CodeVerifier(sandbox=sandbox, fresh=fresh) for fresh in (False, True)}

        async def run(fresh: bool) -> None:
            result = await sandbox.run(commands[fresh])
            assert (result.status, result.stdout) == (Status.OK, EXPECTED), result

        async def verdict(fresh: bool) -> None:
            found = await verifiers[fresh].verify_async(f"```python\n{SOURCE}```", reference)
            assert found.outcome is Outcome.CORRECT, found

        for _ in range(rounds):
            round_rates = {
                "bare python": await asyncio.to_thread(
                    spawn_rate, [python, "-I", "-S", "-c", SOURCE], seconds
                )
            }
            if bwrap:
                shown = (
                    []
                    if python.startswith("/usr/")
                    else ["--ro-bind", str(Path(python).parents[1]), "/python"]
                )
                inside = python if not shown else f"/python/bin/{Path(python).name}"
                library = ["--setenv", "LD_LIBRARY_PATH", "/python/lib"] if shown else []
                argv = [*BWRAP, *shown, *library, inside, "-I", "-S", "-c", SOURCE]
                round_rates["bwrap + python"] = await asyncio.to_thread(spawn_rate, argv, seconds)
            round_rates["plain fork"] = sum(await asyncio.to_thread(fork_figures, "rate", seconds, CORES))
            round_rates["sandbox"] = await async_rate(lambda: run(False), seconds)
            round_rates["sandbox, fresh interpreter"] = await async_rate(lambda: run(True), seconds)
            round_rates["verdicts"] = await async_rate(lambda: verdict(False), seconds)
            round_rates["verdicts, fresh interpreter"] = await async_rate(lambda: verdict(True), seconds)
            for way, rate in round_rates.items():
                rates.setdefault(way, []).append(rate)
            ours = await latency(lambda: run(False), 60)
            (plain,) = await asyncio.to_thread(fork_figures, "median", 60, 1)
            added.append(statistics.median(ours) - plain)
    return {way: statistics.median(found) for way, found in rates.items()}, statistics.median(added)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per way and round")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    rates, added = asyncio.run(measure(arguments.rounds, arguments.seconds))
    print(f"runs per second of a+b on {len(cores)} cores, median of {arguments.rounds} rounds")
    for way, rate in rates.items():
        print(f"  {way:32s} {rate:8.0f}")
    ours = rates["sandbox"]
    print(f"sandbox / bare python      {ours / rates['bare python']:.2f}x (goal 1.8x)")
    if "bwrap + python" in rates:
        print(f"sandbox / bwrap + python   {ours / rates['bwrap + python']:.2f}x (goal 2.5x)")
    else:
        print("sandbox / bwrap + python   not measured: bwrap is missing (apt-get install bubblewrap)")
    print(f"sandbox / plain fork       {ours / rates['plain fork']:.2f}x (the limit is 1)")
    fresh = rates["verdicts, fresh interpreter"] / rates["bare python"]
    print(f"fresh verdicts / bare      {fresh:.2f}x (the limit is 1: each starts an interpreter)")
    quiet = "goals on a quiet machine: 300 per second, fresh 120"
    print(f"verdicts / sandbox         {rates['verdicts'] / ours:.2f}x ({quiet})")
    print(f"latency added to a fork    {1000 * added:.1f} ms (goal 6 ms)")


if __name__ == "__main__":
    main()
