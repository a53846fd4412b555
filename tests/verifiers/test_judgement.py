"""A response may cost its limit, which makes it WRONG; all else that ends a verification is a FAULT with its
cause. Real workers, whose ends the verifier brings about itself."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from verifiers.judgement import Judgement, Limit
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

MIB = 1 << 20
OWN = f"""
import os, signal, time
from verifiers.verdict import correct

MIB = {MIB}

class Odd:
    held = []
    def parse_reference(self, raw):
        return raw
    def verify(self, response, reference):
        match response.split():
            case ["exit", code]: os._exit(int(code))
            case ["signal", number]: os.kill(os.getpid(), int(number))
            case ["once", number]:
                if not os.path.exists(reference):
                    open(reference, "w").close()
                    os.kill(os.getpid(), int(number))
            case ["raise", "once"]:
                if not os.path.exists(reference):
                    open(reference, "w").close()
                    raise LookupError("gone")
            case ["fill", size, number]:
                self.held.append(bytearray(int(size) * MIB))
                os.kill(os.getpid(), int(number))
            case ["leak", size]: self.held.append(bytearray(int(size) * MIB))
            case ["memory"]: bytearray(1 << 40)
            case ["deep"]: self.verify("deep", reference)
            case ["spin"]:
                while True: pass
        return correct(extracted=str(os.getpid()))

class Large(Odd):
    '''Holds more than half of the limit before it sees a response.'''
    def __init__(self):
        self.table = bytearray(300 * MIB)
"""


@asynccontextmanager
async def opened(**limits: Any) -> AsyncIterator[VerifierPool]:
    async with VerifierPool(**{"timeout_seconds": 30.0, **limits}) as pool:
        yield pool


async def judge(folder: Path, response: str, name: str = "Odd", **limits: Any) -> Judgement:
    async with opened(**limits) as pool:
        return await pool.judge(f"./own.py:{name}", {}, response, str(folder / "once"), folder=folder)


@pytest.mark.parametrize(
    ("response", "cause"),
    [
        ("exit 0", "the worker ended by itself, with exit code 0"),
        ("exit 1", "the worker ended by itself, with exit code 1"),
        # Not the signal 9 after 128.
        ("exit 137", "the worker ended by itself, with exit code 137"),
        (f"signal {int(signal.SIGSEGV)}", "the worker crashed: SIGSEGV"),
        (f"signal {int(signal.SIGABRT)}", "the worker crashed: SIGABRT"),
        (f"signal {int(signal.SIGKILL)}", "the worker was ended by SIGKILL, which the pool had not sent"),
    ],
)
async def test_a_worker_that_ends_twice_is_a_fault_with_its_cause(
    folder: Path, response: str, cause: str
) -> None:
    found = await judge(folder, response)
    assert (found.verdict.outcome, found.verdict.score) == (Outcome.FAULT, None)
    assert found.verdict.detail == cause
    assert [fault.detail for fault in found.faults] == [cause] and found.limit is None


async def test_a_crash_comes_with_the_frames_of_the_process(folder: Path) -> None:
    found = await judge(folder, f"signal {int(signal.SIGSEGV)}")
    line = next(n for n, row in enumerate(OWN.splitlines(), 1) if '"signal", number' in row)
    assert f'own.py", line {line} in verify' in found.verdict.trace


@pytest.mark.parametrize(
    ("response", "cause"),
    [("raise once", "LookupError: gone"), (f"once {int(signal.SIGSEGV)}", "SIGSEGV")],
)
async def test_a_fault_whose_retry_succeeds_is_kept_beside_the_verdict(
    folder: Path, response: str, cause: str
) -> None:
    found = await judge(folder, response)
    assert found.verdict.outcome is Outcome.CORRECT
    (fault,) = found.faults
    assert fault.outcome is Outcome.FAULT and cause in fault.detail and "own.py" in fault.trace


@pytest.mark.parametrize(
    ("response", "limit"),
    [
        ("memory", Limit.MEMORY),
        # Past its limit C code aborts, or the kernel kills.
        (f"fill 350 {int(signal.SIGABRT)}", Limit.MEMORY),
        (f"fill 350 {int(signal.SIGKILL)}", Limit.MEMORY),
        ("deep", Limit.RECURSION),
    ],
)
async def test_a_response_that_uses_up_its_limit_is_wrong(folder: Path, response: str, limit: Limit) -> None:
    found = await judge(folder, response, memory_limit_bytes=600 * MIB)
    assert (found.verdict.outcome, found.limit, found.faults) == (Outcome.WRONG, limit, ())


async def test_what_a_large_verifier_holds_is_not_what_a_response_took(folder: Path) -> None:
    found = await judge(folder, f"signal {int(signal.SIGABRT)}", name="Large", memory_limit_bytes=600 * MIB)
    assert found.verdict.outcome is Outcome.FAULT and "SIGABRT" in found.verdict.detail


async def test_what_earlier_responses_left_in_a_worker_makes_no_later_one_wrong(folder: Path) -> None:
    async with opened(memory_limit_bytes=600 * MIB) as pool:
        found = [await pool.judge("./own.py:Odd", {}, "leak 100", None, folder=folder) for _ in range(12)]
    assert {each.verdict.outcome for each in found} == {Outcome.CORRECT}
    # It did run out of memory on the way.
    assert len({each.verdict.extracted for each in found}) > 1
