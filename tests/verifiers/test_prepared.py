"""What a verifier must load is loaded once, before workers are forked, and outside of their time limit."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict

NAME = "./slow.py:Slow"
SLOW = '''
import os, time
from verifiers.verdict import Outcome, Verdict, correct

LOADED = {}

class Slow:
    """Loads for longer than the time limit of one verification."""
    def parse_reference(self, raw):
        return raw
    def preparation(self, reference):
        return reference
    def prepare(self, what):
        if what == "broken":
            raise ValueError("no such library")
        end = time.process_time() + 0.6
        while time.process_time() < end:
            pass
        LOADED[what] = os.getpid()
    def verify(self, response, reference):
        if reference not in LOADED:
            self.prepare(reference)
        if response == "spin":
            while True:
                pass
        return correct(extracted=str(LOADED[reference]), detail=str(os.getpid()))
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


async def ask(pool: VerifierPool, folder: Path, response: str, reference: str) -> Verdict:
    return await pool.verify(NAME, {}, response, reference, folder=folder)


async def test_loading_is_no_part_of_the_time_limit(folder: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        first = await ask(pool, folder, "a", "library")
        assert first.outcome is Outcome.CORRECT
        # Loaded in another process than the one that graded: the template.
        assert first.extracted != first.detail
        assert (await ask(pool, folder, "spin", "library")).outcome is Outcome.WRONG
        again = await ask(pool, folder, "b", "library")
        assert (again.outcome, again.extracted) == (Outcome.CORRECT, first.extracted)


async def test_what_comes_later_is_loaded_for_workers_that_are_there(folder: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        one = await ask(pool, folder, "a", "one")
        two = await ask(pool, folder, "a", "two")
        assert (one.outcome, two.outcome) == (Outcome.CORRECT, Outcome.CORRECT)
        assert one.extracted == two.extracted
        # The new worker has both.
        assert (await ask(pool, folder, "a", "one")).detail == two.detail


async def test_what_cannot_be_loaded_is_a_fault_that_says_why(folder: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        verdict = await ask(pool, folder, "a", "broken")
        assert verdict.outcome is Outcome.FAULT
        assert "no such library" in verdict.detail
        assert (await ask(pool, folder, "a", "library")).outcome is Outcome.CORRECT


async def test_a_template_that_was_killed_loads_again(folder: Path):
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        first = await ask(pool, folder, "a", "one")
        (template,) = [child for child in psutil.Process().children() if str(child.pid) == first.extracted]
        os.kill(template.pid, signal.SIGKILL)
        template.wait()
        second = await ask(pool, folder, "a", "two")
        assert second.outcome is Outcome.CORRECT
        assert (await ask(pool, folder, "a", "one")).extracted == second.extracted != first.extracted


async def test_a_weighted_verifier_loads_what_its_parts_need(folder: Path):
    parts = [{"name": "length", "options": {"max_length": 9}, "shaping": True}, NAME]
    async with VerifierPool(1, timeout_seconds=0.4) as pool:
        reference = pool.parse_reference("weighted", {"parts": parts}, "library", folder=folder)
        verdict = await pool.verify("weighted", {"parts": parts}, "a", reference, folder=folder)
        assert (verdict.outcome, verdict.extracted != verdict.detail) == (Outcome.CORRECT, True)
        plain = pool.parse_reference("weighted", {"parts": ["exact"]}, "a")
        assert (await pool.verify("weighted", {"parts": ["exact"]}, "a", plain)).outcome is Outcome.CORRECT
