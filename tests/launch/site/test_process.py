"""Child processes end for certain, with everything they started."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from fakes.processes import wait_for_end

from asyncrl.launch.site.process import ChildProcess

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
PARENT = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; "
    "time.sleep(600)']); "
    "print(p.pid, flush=True); time.sleep(600)"
)


def child(folder: Path, code: str) -> ChildProcess:
    return ChildProcess("child", ["-c", code], environment={}, log_path=folder / "log")


async def wait_for_output(path: Path, *, seconds: float = 300.0) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, "the child said nothing"
        await asyncio.sleep(0.01)
    return path.read_text().strip()


async def test_a_child_that_ends_leaves_its_code_and_its_last_lines(tmp_path: Path) -> None:
    process = child(tmp_path, "print('first'); print('last'); raise SystemExit(7)")
    await process.start()
    assert await process.wait() == 7
    assert process.last_lines(1) == "last"


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    process = child(tmp_path, STUBBORN)
    await process.start()
    await wait_for_output(tmp_path / "log")
    await process.stop(grace_seconds=0.2)
    assert process.returncode() == -signal.SIGKILL


async def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    process = child(tmp_path, PARENT)
    await process.start()
    grandchild = psutil.Process(int(await wait_for_output(tmp_path / "log")))
    await process.stop(grace_seconds=0.2)
    assert not wait_for_end([grandchild])


def test_a_child_does_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from asyncrl.launch.site.process import ChildProcess\n"
        "async def main():\n"
        f"    p = ChildProcess('c', ['-c', {SLEEP!r}], environment={{}}, "
        f"log_path=Path({str(tmp_path / 'log')!r}))\n"
        "    await p.start()\n    print(p.pid, flush=True)\n    await p.wait()\n"
        "asyncio.run(main())\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    launched = psutil.Process(int(launcher.stdout.readline()))
    asyncio.run(wait_for_output(tmp_path / "log"))
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    assert not wait_for_end([launched])
