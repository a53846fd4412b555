"""Runs one program against a task's tests in a sandbox, and says which passed and why not.

Each stdin test is a run; all call tests share one run, all assert statements that need a judge one pair of
boxes. What is expected never leaves the host, except into a judge's box. SandboxError passes through: it says
nothing on the program."""

import asyncio
import functools
import importlib.util
import json
import marshal
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sandbox.command import MAX_FILE_BYTES, Command, Limits
from sandbox.pool import SandboxPool
from sandbox.result import Result, SandboxError, Status
from verifiers.code import compare, values
from verifiers.code.compare import same_output
from verifiers.code.judge import TestsRequest
from verifiers.code.program import CallsRequest, JudgeRequest
from verifiers.code.tests import AssertTest, CallTest, Checker, CodeReference, StdinTest

# Compiled here: compiling them in every box would take as long as all the rest of a run. A box whose Python
# has another bytecode compiles them itself.
_LOADER = b"""
import marshal, sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
with open("modules", "rb") as file:
    entry, packages, magic, compiled, sources = marshal.load(file)
modules = marshal.loads(compiled) if magic == MAGIC_NUMBER else sources
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=name in packages) if name in modules else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        code = modules[module.__name__]
        if isinstance(code, bytes):
            code = compile(code, module.__name__ + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
sys.meta_path.insert(0, Finder())
__import__(entry)
sys.modules[entry].main()
"""
Entry = Literal["program", "judge"]
_MODULES: dict[Entry, tuple[str, ...]] = {
    "program": ("program", "values", "forms", "server"),
    "judge": ("judge", "values", "forms", "names", "link", "reference", "pytest_stand_in"),
}
_PACKAGES = ("verifiers", "verifiers.code")


@functools.cache
def bundle(entry: Entry) -> tuple[tuple[str, bytes], ...]:
    """The files of a box that runs `main` of this module: run.py and its modules."""
    folder = Path(__file__).parent
    sources = {f"verifiers.code.{name}": (folder / f"{name}.py").read_bytes() for name in _MODULES[entry]}
    sources |= dict.fromkeys(_PACKAGES, b"")
    codes = {name: compile(text, f"{name}.py", "exec", dont_inherit=True) for name, text in sources.items()}
    parts = (f"verifiers.code.{entry}", _PACKAGES, importlib.util.MAGIC_NUMBER, marshal.dumps(codes), sources)
    return ("run.py", _LOADER), ("modules", marshal.dumps(parts, 2))


# More than this is compared in a thread, so that the event loop stays free.
_QUICK_BYTES = 1 << 16
_PAGE_BYTES = 4096
_MAX_MESSAGE_BYTES = 4096
_BY_LOAD = (Status.TIME_LIMIT, Status.MEMORY_LIMIT)


@dataclass(frozen=True)
class TestOutcome:
    """One test's verdict."""

    __test__ = False
    passed: bool
    why: str = ""
    is_repeatable: bool = True
    """False when a limit or a kill from outside may have decided: see Verdict."""


@dataclass(frozen=True)
class Rules:
    """How to compare and when to stop."""

    whitespace: str
    tolerance: float
    early_stop: bool
    fresh: bool


def _checked(result: Result) -> Result:
    if result.status is Status.REFUSED:
        raise SandboxError(result.detail)
    return result


def _why(result: Result) -> str:
    if result.status is Status.OK:
        return ""
    lines = result.stderr[-_MAX_MESSAGE_BYTES:].decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines and result.status is Status.WRONG_EXIT else ""
    return f"{result.status.value.replace('_', ' ')}, {result.detail}{last}"


def is_repeatable(result: Result) -> bool:
    """Whether the run would have ended the same on a busier machine."""
    return result.status not in _BY_LOAD and result.signal != signal.SIGKILL


def _failed(result: Result, why: str) -> TestOutcome:
    return TestOutcome(False, why, is_repeatable(result))


def _with_room(command: Command) -> Command:
    """The command with disk space for the files it comes with, on top of what the program may write."""
    # Else a compiled program, or an output for a checker, that is larger than the limit could not be
    # placed: a failure of the sandbox that the response has caused.
    pages = sum(2 + len(content) // _PAGE_BYTES for _, content in command.files)
    disk_bytes = command.limits.disk_bytes + pages * _PAGE_BYTES
    return replace(command, limits=replace(command.limits, disk_bytes=disk_bytes))


async def _run(sandbox: SandboxPool, command: Command) -> Result:
    return _checked(await sandbox.run(_with_room(command)))


async def _build(
    sandbox: SandboxPool, source: str, lang: str, limits: Limits, fresh: bool
) -> Command | Result:
    built = await sandbox.build(source, lang=lang, limits=limits, fresh=fresh)
    return _checked(built) if isinstance(built, Result) else built


async def _accepts(
    sandbox: SandboxPool, checker: Checker, test: StdinTest, output: bytes, limits: Limits
) -> TestOutcome:
    """The checker's word on an output, in a box of its own that never held the program."""
    if len(output) > MAX_FILE_BYTES:
        return TestOutcome(False, f"printed {len(output)} bytes; a checker reads at most {MAX_FILE_BYTES}")
    built = await _build(sandbox, checker.source, checker.lang, limits, False)
    if isinstance(built, Result):
        raise SandboxError(f"the task's checker does not compile: {_why(built)}")
    expected = test.stdout.encode("utf-8", "surrogatepass")
    files = (("input.txt", test.stdin), ("output.txt", output), ("expected.txt", expected))
    if max(len(test.stdin), len(expected)) > MAX_FILE_BYTES:
        raise SandboxError(f"the task's test has a file of more than {MAX_FILE_BYTES} bytes for its checker")
    result = await _run(sandbox, replace(built, files=(*built.files, *files)))
    if result.status is Status.OK:
        return TestOutcome(True)
    return _failed(result, f"the checker did not accept the output ({_why(result)})")


async def _prints(test: StdinTest, output: bytes, rules: Rules) -> bool:
    same = functools.partial(same_output, whitespace=rules.whitespace, tolerance=rules.tolerance)
    if len(output) + len(test.stdout) <= _QUICK_BYTES:
        return same(test.stdout, output)
    return await asyncio.to_thread(same, test.stdout, output)


async def grade_stdin(
    sandbox: SandboxPool, program: Command, tests: Sequence[StdinTest], reference: CodeReference, rules: Rules
) -> list[TestOutcome]:
    """Outcomes of the tests, in order; fewer when stopped early."""
    outcomes = []
    for test in tests:
        result = await _run(sandbox, replace(program, stdin=test.stdin))
        if result.status is not Status.OK:
            outcome = _failed(result, _why(result))
        elif reference.checker is not None:
            outcome = await _accepts(sandbox, reference.checker, test, result.stdout, reference.limits)
        elif await _prints(test, result.stdout, rules):
            outcome = TestOutcome(True)
        else:
            outcome = TestOutcome(False, f"printed {result.stdout[:80]!r}, expected {test.stdout[:80]!r}")
        outcomes.append(outcome)
        if not outcome.passed and rules.early_stop:
            break
    return outcomes


def _harness(
    entry: Entry, request: CallsRequest | JudgeRequest | TestsRequest, limits: Limits, fresh: bool
) -> Command:
    argv = ("/bin/sh", "-c", 'exec python3 -s "$0"', "run.py") if fresh else ("run.py",)
    stdin = json.dumps(request).encode()
    return Command(argv, warm=not fresh, stdin=stdin, files=bundle(entry), limits=limits)


def _holds(test: CallTest, expected: Any, form: Any, tolerance: float) -> bool:
    match test.relation:
        case "any":
            return True
        case "same":
            return compare.same_value(expected, form, tolerance=tolerance)
        case "equal":
            return compare.equal_value(expected, form)
        case "identical":
            # None or a boolean, which are their own forms.
            return form is expected
        case "true":
            return compare.is_true(form)
        case _:
            return not compare.is_true(form)


def _judge_call(test: CallTest, line: bytes, tolerance: float, whitespace: str = "lines") -> TestOutcome:
    try:
        expected = values.encode(test.expected)
        due = expected if test.stdout is None else ["l", [expected, test.stdout]]
        refusal = compare.refusal(line, due, for_truth=test.relation in ("true", "false"))
        if refusal:
            return TestOutcome(False, f"{test.source[:80]} gave {refusal}")
        report = values.loads(line)
        if not isinstance(report, dict) or "value" not in report:
            error = report.get("error") if isinstance(report, dict) else None
            return TestOutcome(False, f"{test.source[:80]}: {error[:200] if isinstance(error, str) else '?'}")
        form = report["value"]
        if test.stdout is not None:
            printed = str(report.get("printed")).encode("utf-8", "replace")
            if not same_output(test.stdout, printed, whitespace=whitespace, tolerance=tolerance):
                why = f"{test.source[:80]} printed {printed[:80]!r}, expected {test.stdout[:80]!r}"
                return TestOutcome(False, why)
        if _holds(test, expected, form, tolerance):
            return TestOutcome(True)
        given, due = compare.shown(form), compare.shown(expected)
        return TestOutcome(False, f"{test.source[:80]} gave {given}, expected {due}")
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        return TestOutcome(False, f"{test.source[:80]}: no usable value: {str(error)[:200]}")


def _judge_calls(tests: Sequence[CallTest], lines: Sequence[bytes], rules: Rules) -> list[TestOutcome]:
    pairs = zip(tests, lines, strict=False)
    return [_judge_call(test, line, rules.tolerance, rules.whitespace) for test, line in pairs]


async def grade_calls(
    sandbox: SandboxPool, source: str, tests: Sequence[CallTest], limits: Limits, rules: Rules
) -> list[TestOutcome]:
    """Outcomes of all calls, made one after the other in one run, each on the program as freshly loaded."""
    request: CallsRequest = {"program": source, "calls": [test.request() for test in tests]}
    result = await _run(sandbox, _harness("program", request, limits, rules.fresh))
    # What follows the last report, or is no whole line, is no report.
    lines = result.stdout.split(b"\n", len(tests))[:-1]
    if len(result.stdout) <= _QUICK_BYTES:
        outcomes = _judge_calls(tests, lines, rules)
    else:
        outcomes = await asyncio.to_thread(_judge_calls, tests, lines, rules)
    missing = _failed(result, _why(result) or "the program ended before this call")
    return outcomes + [missing] * (len(tests) - len(outcomes))


async def grade_asserts(
    sandbox: SandboxPool, source: str, tests: Sequence[AssertTest], limits: Limits, rules: Rules
) -> list[TestOutcome]:
    """Outcomes of the statements, run by a judge in a second box that asks the program's box."""
    is_about_output = any("stdout" in test.source or "capsys" in test.source for test in tests)
    served: JudgeRequest = {"program": source, "tests": len(tests), "capture": is_about_output}
    program = _harness("program", served, limits, rules.fresh)
    request: TestsRequest = {"tests": [test.source for test in tests], "early_stop": rules.early_stop}
    judge = _harness("judge", request, limits, False)
    played, judged = await sandbox.run_linked(_with_room(program), _with_room(judge))
    _checked(judged)
    # The program's box is always killed: when the judge has ended.
    repeatable = is_repeatable(judged) and played.status not in _BY_LOAD
    outcomes = []
    # The last part is empty, or a line that the judge did not come to finish.
    for line in judged.stdout.split(b"\n")[:-1]:
        report = json.loads(line)
        outcomes.append(TestOutcome(report["passed"] is True, report["why"] or "", repeatable))
    if len(outcomes) < len(tests) and (not outcomes or outcomes[-1].passed):
        why = _why(judged) or _why(played) or "the program ended early"
        outcomes.append(TestOutcome(False, why, repeatable))
    return outcomes[: len(tests)]


async def grade(
    sandbox: SandboxPool, source: str, reference: CodeReference, rules: Rules
) -> tuple[list[TestOutcome], Result | None]:
    """(outcomes of the tests that were run, the compiler's refusal if there was one)."""
    stdin_tests = [test for test in reference.tests if isinstance(test, StdinTest)]
    call_tests = [test for test in reference.tests if isinstance(test, CallTest)]
    assert_tests = [test for test in reference.tests if isinstance(test, AssertTest)]
    outcomes: list[TestOutcome] = []

    def stopped() -> bool:
        return rules.early_stop and not all(outcome.passed for outcome in outcomes)

    if call_tests:
        outcomes += await grade_calls(sandbox, source, call_tests, reference.limits, rules)
    if assert_tests and not stopped():
        outcomes += await grade_asserts(sandbox, source, assert_tests, reference.limits, rules)
    if stdin_tests and not stopped():
        program = await _build(sandbox, source, reference.lang, reference.limits, rules.fresh)
        if isinstance(program, Result):
            return outcomes, program
        outcomes += await grade_stdin(sandbox, program, stdin_tests, reference, rules)
    return outcomes, None
