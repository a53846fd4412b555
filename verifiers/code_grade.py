"""Runs one program against a task's tests through the Sandbox protocol, and says which passed and why not.

Each stdin test is a run; all call tests share one run, all assert statements that need a judge one pair of
boxes. What is expected never leaves the host, except into a judge's box. SandboxError passes through: it says
nothing on the program."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandbox.command import Command
from sandbox.limits import Limits
from sandbox.protocol import Sandbox
from sandbox.result import Result, SandboxError, Status
from verifiers import code_values
from verifiers.code_bundle import bundle
from verifiers.code_compare import same_output, same_value
from verifiers.code_tests import AssertTest, CallTest, Checker, CodeReference, StdinTest


@dataclass(frozen=True)
class TestOutcome:
    """One test's verdict."""

    __test__ = False
    passed: bool
    why: str = ""


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
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines and result.status is Status.WRONG_EXIT else ""
    return f"{result.status.value.replace('_', ' ')}, {result.detail}{last}"


async def _build(sandbox: Sandbox, source: str, lang: str, limits: Limits, fresh: bool) -> Command | Result:
    built = await sandbox.build(source, lang=lang, limits=limits, fresh=fresh)
    return _checked(built) if isinstance(built, Result) else built


async def _accepts(
    sandbox: Sandbox, checker: Checker, test: StdinTest, output: bytes, limits: Limits
) -> TestOutcome:
    """The checker's word on an output, in a box of its own that never held the program."""
    built = await _build(sandbox, checker.source, checker.lang, limits, False)
    if isinstance(built, Result):
        raise SandboxError(f"the task's checker does not compile: {_why(built)}")
    files = (("input.txt", test.stdin), ("output.txt", output), ("expected.txt", test.stdout.encode()))
    result = _checked(await sandbox.run(replace(built, files=(*built.files, *files))))
    if result.status is Status.OK:
        return TestOutcome(True)
    return TestOutcome(False, f"the checker did not accept the output ({_why(result)})")


async def grade_stdin(
    sandbox: Sandbox, program: Command, tests: Sequence[StdinTest], reference: CodeReference, rules: Rules
) -> list[TestOutcome]:
    """Outcomes of the tests, in order; fewer when stopped early."""
    outcomes = []
    for test in tests:
        result = _checked(await sandbox.run(replace(program, stdin=test.stdin)))
        if result.status is not Status.OK:
            outcome = TestOutcome(False, _why(result))
        elif reference.checker is not None:
            outcome = await _accepts(sandbox, reference.checker, test, result.stdout, reference.limits)
        elif same_output(test.stdout, result.stdout, whitespace=rules.whitespace, tolerance=rules.tolerance):
            outcome = TestOutcome(True)
        else:
            outcome = TestOutcome(False, f"printed {result.stdout[:80]!r}, expected {test.stdout[:80]!r}")
        outcomes.append(outcome)
        if not outcome.passed and rules.early_stop:
            break
    return outcomes


def _harness(entry: str, request: dict[str, Any], limits: Limits, fresh: bool) -> Command:
    argv = ("/bin/sh", "-c", 'exec python3 -s "$0"', "run.py") if fresh else ("run.py",)
    stdin = json.dumps(request).encode()
    return Command(argv, warm=not fresh, stdin=stdin, files=bundle(entry), limits=limits)


def _holds(test: CallTest, value: Any, tolerance: float) -> bool:
    match test.relation:
        case "any":
            return True
        case "same":
            return same_value(test.expected, value, tolerance=tolerance)
        case "equal":
            return bool(value == test.expected)
        case "identical":
            return value is test.expected
        case "true":
            return bool(value)
        case _:
            return not value


def _judge_call(test: CallTest, line: bytes, rules: Rules) -> TestOutcome:
    try:
        report = code_values.loads(line)
        if not isinstance(report, dict) or "value" not in report:
            return TestOutcome(False, f"{test.source[:80]}: {str(dict(report).get('error'))[:200]}")
        value = code_values.decode(report["value"])
        if test.stdout is not None:
            printed = str(report.get("printed")).encode("utf-8", "replace")
            if not same_output(test.stdout, printed, whitespace=rules.whitespace, tolerance=rules.tolerance):
                why = f"{test.source[:80]} printed {printed[:80]!r}, expected {test.stdout[:80]!r}"
                return TestOutcome(False, why)
        if _holds(test, value, rules.tolerance):
            return TestOutcome(True)
        return TestOutcome(
            False, f"{test.source[:80]} gave {_short(value)}, expected {_short(test.expected)}"
        )
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        return TestOutcome(False, f"{test.source[:80]}: no usable value: {str(error)[:200]}")


def _short(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:
        # An integer of too many digits to print.
        return f"an object of type {type(value).__name__}"


async def grade_calls(
    sandbox: Sandbox, source: str, tests: Sequence[CallTest], limits: Limits, rules: Rules
) -> list[TestOutcome]:
    """Outcomes of all calls, made one after the other in one run, each on the program as freshly loaded."""
    request = {"program": source, "calls": [test.request() for test in tests]}
    result = _checked(await sandbox.run(_harness("code_program", request, limits, rules.fresh)))
    lines = result.stdout.splitlines()
    missing = TestOutcome(False, _why(result) or "the program ended before this call")
    return [
        _judge_call(test, lines[index], rules) if index < len(lines) else missing
        for index, test in enumerate(tests)
    ]


async def grade_asserts(
    sandbox: Sandbox, source: str, tests: Sequence[AssertTest], limits: Limits, rules: Rules
) -> list[TestOutcome]:
    """Outcomes of the statements, run by a judge in a second box that asks the program's box."""
    is_about_output = any("stdout" in test.source or "capsys" in test.source for test in tests)
    served = {"program": source, "tests": len(tests), "capture": is_about_output}
    program = _harness("code_program", served, limits, rules.fresh)
    request = {"tests": [test.source for test in tests], "early_stop": rules.early_stop}
    judge = _harness("code_judge", request, limits, False)
    played, judged = await sandbox.run_linked(program, judge)
    _checked(judged)
    outcomes = []
    for line in judged.stdout.splitlines():
        report = json.loads(line)
        outcomes.append(TestOutcome(report["passed"] is True, report["why"] or ""))
    if len(outcomes) < len(tests) and (not outcomes or outcomes[-1].passed):
        outcomes.append(TestOutcome(False, _why(judged) or _why(played) or "the program ended early"))
    return outcomes[: len(tests)]


async def grade(
    sandbox: Sandbox, source: str, reference: CodeReference, rules: Rules
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
