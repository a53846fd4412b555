"""What is larger than a limit, by a program's doing, is WRONG or compared; never a fault, never an exception.

And what a limit decided is not remembered."""

# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import asyncio
import dataclasses
from typing import Any

import pytest

from sandbox.command import Command, Limits
from sandbox.result import Result, SandboxError, Status
from verifiers.code.verifier import CodeVerifier
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

LIMITS = {"wall_seconds": 20, "cpu_seconds": 10}
CHECKER = "import os\nassert os.path.getsize('output.txt') == int(open('expected.txt').read())"


def large_program(mebibytes: int) -> str:
    """C++ whose compiled form holds an array of this many mebibytes."""
    return f'```cpp\n#include <cstdio>\nchar data[{mebibytes} << 20] = {{1}};\nint main() {{ printf("%d", data[0]); }}\n```'


@pytest.mark.parametrize(
    ("mebibytes", "detail"),
    [(20, "The test passed."), (66, "Does not compile")],
)
def test_a_compiled_program_larger_than_the_disk_limit_is_run_or_wrong(grade, mebibytes, detail):
    limits = LIMITS | {"disk_mb": 8}
    verdict = grade(large_program(mebibytes), [{"stdout": "1"}], lang="cpp", limits=limits)
    assert verdict.outcome is (Outcome.CORRECT if mebibytes == 20 else Outcome.WRONG), verdict.detail
    assert detail in verdict.detail


@pytest.mark.parametrize(
    ("mebibytes", "output_mb", "outcome"), [(12, 16, "correct"), (65, 80, "wrong"), (90, 80, "wrong")]
)
def test_an_output_larger_than_the_disk_for_a_checker_is_checked_or_wrong(
    grade, mebibytes, output_mb, outcome
):
    program = f"import sys\nfor _ in range({mebibytes}): sys.stdout.write('x' * (1 << 20))"
    tests = [{"stdout": str(mebibytes << 20)}]
    verdict = grade(program, tests, checker=CHECKER, limits=LIMITS | {"disk_mb": 8, "output_mb": output_mb})
    assert verdict.outcome == outcome, verdict.detail
    assert "a checker reads at most" in verdict.detail or mebibytes != 65


def test_a_program_still_cannot_write_more_than_the_disk_limit(grade):
    program = "def f(n):\n open('x', 'wb').write(bytes(n << 20))\n return n"
    limits = LIMITS | {"disk_mb": 8}
    assert grade(program, [{"call": "f(4)", "expect": "4"}], limits=limits).outcome is Outcome.CORRECT
    assert grade(program, [{"call": "f(12)", "expect": "12"}], limits=limits).outcome is Outcome.WRONG


@pytest.mark.parametrize("value", [
    "__import__('decimal').Decimal('1e999999999')", "[[]] * 500_000", "'\\ud800'", "range(10**5000)", "[float('nan')]",
    *(pytest.param(value, marks=pytest.mark.exhaustive) for value in (
        "set(i * (2**61 - 1) for i in range(40_000))", "__import__('fractions').Fraction(3**2_000_000, 2**4_000_000 - 1)",
        "1 << 3_999_999", "'x' * 10_000_000"))
])  # fmt: skip
def test_whatever_a_program_returns_the_verdict_is_wrong(grade, value):
    tests = [{"call": "f()", "expect": "[1]"}, {"call": "f()", "expect": "5"}, {"assert": "assert f() == 7"}]
    limits = {"wall_seconds": 3, "cpu_seconds": 2}
    verdict = grade(f"def f(): return {value}", tests, limits=limits, scoring="fraction")
    assert (verdict.outcome, verdict.score) == (Outcome.WRONG, 0.0), verdict.detail


@pytest.mark.parametrize("written", ["b'\\n' * (4 << 20)", "b'{\"value\": [\"i\", \"0x1\"]}\\n' * 100_000", "b'\\xff' * 1000",
                                     "b'[' * 100_000 + b'\\n'", "b'{\"value\": 5}\\n'", "b'{\"value\": [\"i\", \"0x5\"]}'"])  # fmt: skip
def test_whatever_a_program_writes_in_place_of_its_reports_the_verdict_is_wrong(grade, written):
    program = f"import os, gc\nfor fd in range(3, 20):\n try: os.write(fd, {written})\n except OSError: pass\nos._exit(0)"
    verdict = grade(program, [{"call": "f()", "expect": "5"}] * 2, limits=LIMITS)
    assert verdict.outcome is Outcome.WRONG, verdict.detail


@pytest.mark.parametrize(
    "test", [{"stdout": "1"}, {"call": "f()", "expect": "1"}, {"assert": "assert abs(f()) == 1"}]
)
def test_a_verdict_by_a_time_limit_is_not_repeatable(grade, test):
    program = "import time\ndef f():\n    time.sleep(60)\nif __name__ == '__main__':\n    f()"
    verdict = grade(program, [test], limits={"wall_seconds": 0.5})
    assert verdict.outcome is Outcome.WRONG and not verdict.is_repeatable, verdict.detail
    quick = grade("def f(): return 2\nprint(2)", [test], limits=LIMITS)
    assert quick.outcome is Outcome.WRONG and quick.is_repeatable, quick.detail


class LateOnce:
    """A sandbox whose first run ends by the time limit, as on a busy machine."""

    def __init__(self) -> None:
        self.num_runs = 0

    async def build(self, source: str, *, lang: str, limits: Limits, fresh: bool = False) -> Command:
        return Command(("program",), limits=limits)

    async def run(self, command: Command) -> Result:
        self.num_runs += 1
        if self.num_runs == 1:
            return Result(Status.TIME_LIMIT, detail="ran longer than 1 s")
        return Result(Status.OK, stdout=b"1\n")

    async def run_linked(self, program: Command, judge: Command) -> tuple[Result, Result]:
        raise SandboxError("no judge here")


async def test_the_pool_remembers_a_program_by_its_task_and_forgets_a_time_limit():
    sandbox = LateOnce()

    options: dict[str, Any] = {"sandbox": sandbox}
    async with VerifierPool() as pool:
        references = [pool.parse_reference("code", options, [{"stdout": gold}]) for gold in ("1", "100")]
        jobs = [(references[0], 3), (references[1], 2)]
        verdicts = [
            await pool.verify("code", options, "print(1)", reference)
            for reference, times in jobs
            for _ in range(times)
        ]
    # Late, right, from the cache; then the same program on a task where it is wrong.
    assert [verdict.outcome.value for verdict in verdicts] == [
        "wrong",
        "correct",
        "correct",
        "wrong",
        "wrong",
    ]
    assert sandbox.num_runs == 3


class Recording(LateOnce):
    """Keeps the commands."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Command] = []

    async def run(self, command: Command) -> Result:
        self.commands.append(command)
        return Result(Status.OK, stdout=b"x" * 5000)


def test_the_files_that_come_with_a_command_do_not_count_against_its_disk_limit():
    sandbox = Recording()
    verifier = CodeVerifier(sandbox=sandbox, limits={"disk_bytes": 100})
    gold = {"tests": [{"stdout": "1"}], "checker": "pass"}
    asyncio.run(verifier.verify_async("x", verifier.parse_reference(gold)))
    program, checker = sandbox.commands
    assert program.limits == dataclasses.replace(verifier._limits, disk_bytes=100)
    # Three files: 0, 5,000 and 1 bytes; each takes whole pages and one for its entry.
    assert checker.limits.disk_bytes == 100 + (2 + 3 + 2) * 4096


@pytest.mark.parametrize("odd", ["\ud800", "\x00", "\udcff", "\U0010ffff", "\u2028", "\x1a"])
def test_a_program_of_odd_characters_gets_a_verdict(grade, odd):
    for lang, test in (("python", {"call": "f()", "expect": "5"}), ("python", {"stdout": "1"}),
                       ("python", {"assert": "assert abs(f()) == 5"}), ("bash", {"stdout": "1"})):  # fmt: skip
        verdict = grade(
            f"```{lang}\n{odd}x = '{odd}'\nraise ValueError('{odd}')\n```", [test], lang=lang, limits=LIMITS
        )
        assert verdict.outcome is Outcome.WRONG, verdict.detail
