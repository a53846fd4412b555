"""The last resort of a run that was asked to stop."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, signal, sys, threading, time
from asyncrl.launch.stopping import LastResort

async def main(last_resort):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: print("asked", flush=True))
    last_resort.watch(signal.SIGTERM)
    print("up", flush=True)
    {how}

with LastResort({seconds}) as last_resort:
    asyncio.run(main(last_resort))
print("ended", flush=True)
"""


def stop(how: str, *, seconds: float | str, times: int = 1) -> tuple[int, str, str]:
    """Exit code and output of a process that got SIGTERM, `times` times, during `how`; `seconds` later it is
    killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(how=how, seconds=seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    heard = ""
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
        # Two signals at once would be one.
        heard += process.stdout.readline() if times > 1 else ""
    said, complained = process.communicate(timeout=60)
    return process.returncode, heard + said, complained


@pytest.mark.parametrize("how", ["time.sleep(1000)", "while True: pass", "await asyncio.sleep(1000)"])
def test_whatever_holds_the_process_it_ends(how: str) -> None:
    code, said, complained = stop(how, seconds=0.5)
    assert code == 130
    assert "ended" not in said
    assert "not everything ended within 0.5 s" in complained and "resumes" in complained


def test_an_orderly_end_is_left_alone_and_the_loop_hears_the_signal_too() -> None:
    code, said, complained = stop("await asyncio.sleep(0.2)", seconds=60)
    assert (code, complained) == (0, "")
    assert said == "asked\nended\n"


def test_a_second_signal_shortens_a_long_time_to_finish() -> None:
    code, said, complained = stop("await asyncio.sleep(1000)", seconds="1000, hurried_seconds=0.5", times=2)
    assert code == 130 and said == "asked\nasked\n"
    assert "not everything ended within 0.5 s" in complained
