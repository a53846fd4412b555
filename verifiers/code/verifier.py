"""Grades programs by tests, in a sandbox: standard input and output, function calls, assert statements.

The program sees inputs, never what is expected of it, and its box decides nothing: values come out as plain
data and are compared outside. What a program does is WRONG at worst; FAULT is the sandbox's own failure.
Needs no killable worker: `verify_async` waits for the sandbox, which keeps every limit."""

import dataclasses
import time
from collections.abc import Hashable, Iterator
from typing import Annotated, Any

from sandbox.cgroup import available_cores
from sandbox.command import MEBIBYTE, Limits, parse_limits
from sandbox.pool import SandboxPool, SandboxService
from sandbox.result import Result, SandboxError, Status
from sandbox.settings import SandboxSettings
from verifiers.code.compare import Whitespace
from verifiers.code.extract import MAX_PROGRAM_CHARACTERS, extract_program
from verifiers.code.grade import Rules, TestOutcome, grade, is_repeatable
from verifiers.code.tests import CodeReference, Scoring, parse_code_reference
from verifiers.plugins import Bounds
from verifiers.storable import storable_verdict
from verifiers.verdict import Outcome, Verdict
from verifiers.verifier import VerifierUnavailable

_DEFAULT_LIMITS = Limits(cpu_seconds=10.0, wall_seconds=20.0, memory_bytes=1024 * MEBIBYTE)


class CodeVerifier:
    """CORRECT when every test passes. The score is 1 or 0; with `scoring="fraction"`, the share that passes.

    `limits` bound each run: one stdin test, or all call tests together, or all assert tests together. A row's
    gold may say lang, limits, scoring and whitespace for itself. `sandbox` replaces the verifier's own, for
    use on its loop."""

    def __init__(
        self,
        *,
        lang: str = "python",
        limits: dict[str, Any] | None = None,
        scoring: Scoring = "all",
        early_stop: bool | None = None,
        float_tolerance: Annotated[float, Bounds(0, below=1)] = 1e-6,
        whitespace: Whitespace = "lines",
        fresh: bool = False,
        workers: int | None = None,
        python: str | None = None,
        packages: tuple[str, ...] = ("numpy",),
        allow_unsafe: bool = False,
        sandbox: Any = None,
    ) -> None:
        self._lang = lang
        self._limits = parse_limits(limits or {}, _DEFAULT_LIMITS)
        self._scoring = scoring
        self._early_stop = early_stop
        self._tolerance = float_tolerance
        self._whitespace = whitespace
        self._fresh = fresh
        self._sandbox: SandboxPool | None = sandbox
        settings = SandboxSettings(
            workers=workers or available_cores(), packages=packages, allow_unsafe=allow_unsafe
        )
        self._service = SandboxService(dataclasses.replace(settings, python=python) if python else settings)

    @property
    def pool_timeout_seconds(self) -> float:
        """Longer than any verification: the sandbox bounds each run, a row has a few dozen of them."""
        return 3600.0

    def parse_reference(self, raw: object) -> CodeReference:
        """The row's gold, checked. Raises ValueError."""
        return parse_code_reference(raw, lang=self._lang, limits=self._limits, whitespace=self._whitespace)

    def check_machine(self) -> None:
        """Raises VerifierUnavailable when no program can be run here. Warms the sandbox up."""
        try:
            self._service.call(_run_one)
        except (SandboxError, ValueError) as error:
            raise VerifierUnavailable(f"The sandbox failed: {error}") from error

    def cache_key(self, response: str, reference: CodeReference) -> Hashable | None:
        """The program: by one reference, equal programs get equal verdicts."""
        return extract_program(response, reference.lang, reference.names)

    def verify(self, response: str, reference: CodeReference) -> Verdict:
        """The verdict; blocks. Not inside an event loop: use verify_async."""
        return self._service.call(lambda sandbox: self._verify(sandbox, response, reference))

    async def verify_async(self, response: str, reference: CodeReference) -> Verdict:
        """The verdict, awaited; from any event loop."""
        if self._sandbox is not None:
            return await self._verify(self._sandbox, response, reference)
        return await self._service.call_async(lambda sandbox: self._verify(sandbox, response, reference))

    def close(self) -> None:
        """Ends the verifier's own sandbox; it would end with the process anyway."""
        self._service.close()

    async def _verify(self, sandbox: SandboxPool, response: str, reference: CodeReference) -> Verdict:
        # A program may print, raise and be text that is no Unicode.
        return storable_verdict(await self._grade(sandbox, response, reference))

    async def _grade(self, sandbox: SandboxPool, response: str, reference: CodeReference) -> Verdict:
        source = extract_program(response, reference.lang, reference.names)
        if source is None:
            return Verdict(Outcome.NO_ANSWER, 0.0, detail="The response holds no program.")
        if len(source) > MAX_PROGRAM_CHARACTERS:
            detail = f"The program has {len(source)} characters; {MAX_PROGRAM_CHARACTERS} are allowed."
            return Verdict(Outcome.WRONG, 0.0, detail=detail)
        scoring = reference.scoring or self._scoring
        early_stop = self._early_stop if self._early_stop is not None else scoring == "all"
        rules = Rules(reference.whitespace or self._whitespace, self._tolerance, early_stop, self._fresh)
        started = time.perf_counter()
        try:
            outcomes, refusal = await grade(sandbox, source, reference, rules)
        except SandboxError as error:
            return Verdict(Outcome.FAULT, None, extracted=source, detail=f"The sandbox failed: {error}")
        seconds = time.perf_counter() - started
        if refusal is not None:
            complaint = refusal.stderr[:4096].decode("utf-8", "replace").strip()[:300]
            detail = f"Does not compile ({refusal.status.value}): {complaint}"
            return Verdict(
                Outcome.WRONG,
                0.0,
                extracted=source,
                detail=detail,
                seconds=seconds,
                is_repeatable=is_repeatable(refusal),
            )
        return _verdict(outcomes, len(reference.tests), scoring, source, seconds)


async def _run_one(sandbox: SandboxPool) -> None:
    command = await sandbox.build("print('up')", lang="python", limits=Limits())
    result = command if isinstance(command, Result) else await sandbox.run(command)
    if result.status is not Status.OK:
        raise SandboxError(result.detail or f"a first program ended with {result.status.value}")


def _verdict(outcomes: list[TestOutcome], total: int, scoring: str, source: str, seconds: float) -> Verdict:
    passed = sum(outcome.passed for outcome in outcomes)
    if passed == total:
        detail = f"All {total} tests passed." if total > 1 else "The test passed."
        return Verdict(Outcome.CORRECT, 1.0, extracted=source, detail=detail, seconds=seconds)
    first = next((outcome.why for outcome in outcomes if not outcome.passed), "not run")
    run = f", {len(outcomes)} run" if len(outcomes) < total else ""
    score = passed / total if scoring == "fraction" else 0.0
    detail = f"{passed} of {total} tests passed{run}; first failure: {first}"
    return Verdict(
        Outcome.WRONG,
        score,
        extracted=source,
        detail=detail,
        seconds=seconds,
        is_repeatable=all(outcome.is_repeatable for outcome in outcomes),
    )


_RESULTS = ("None", "True", "0", "''", "[]", "arguments[0] if arguments else None")
_IDLE = {
    "python": ("pass\n", "import sys\nsys.stdout.write(sys.stdin.read())\n"),
    "bash": (":\n", "cat\n"),
    "c": (
        "int main(void) { return 0; }\n",
        "#include <stdio.h>\nint main(void) { for (int c; (c = getchar()) != EOF;) putchar(c); }\n",
    ),
}
_IDLE["cpp"] = _IDLE["c"]


def stubs(reference: CodeReference) -> Iterator[tuple[str, str]]:
    """(what it is, a response that holds it) of each useless program."""
    empty, echo = _IDLE[reference.lang]
    yield "empty program", _fenced(empty, reference.lang)
    if not reference.names:
        yield "its own input", _fenced(echo, reference.lang)
        return
    for result in _RESULTS:
        kind = "its first argument" if result.startswith("arguments") else f"always {result}"
        functions = "\n".join(_function(name, result) for name in reference.names)
        yield kind, _fenced(functions, "python")
        if any(map(_is_class_name, reference.names)):
            make = {True: _class, False: _function}
            source = "\n".join(make[_is_class_name(name)](name, result) for name in reference.names)
            yield f"{kind} by a class", _fenced(source, "python")


def _is_class_name(name: str) -> bool:
    return name[:1].isupper()


def _function(name: str, result: str) -> str:
    return f"def {name}(*arguments, **keywords):\n    return {result}\n"


def _class(name: str, result: str) -> str:
    base = "Exception" if name.endswith(("Error", "Exception")) else "object"
    return (
        f"class {name}({base}):\n"
        "    def __init__(self, *arguments, **keywords):\n"
        "        pass\n"
        "    def __getattr__(self, attribute):\n"
        f"        return lambda *arguments, **keywords: {result}\n"
    )


def _fenced(source: str, lang: str) -> str:
    return f"```{lang}\n{source}```\n"
