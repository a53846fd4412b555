"""Verifiers that wait for something else (a sandbox, a server): two attempts, as long as they take."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from verifiers.groups import GroupJudgement, all_faults, checked_verdicts, shared
from verifiers.judgement import Judgement, Limit
from verifiers.loaded import Loaded
from verifiers.own import parsed
from verifiers.storable import fault_of, storable_verdict
from verifiers.task import Task, with_task, with_tasks
from verifiers.verdict import Outcome, Verdict, too_deep
from verifiers.verifier import AsyncVerifier


async def begun(loaded: Loaded, response: str, reference: Any, task: Task) -> tuple[Any, bytes | None]:
    """The reference, and the digest of what decides of the response."""
    found = parsed(loaded.verifier, reference)
    try:
        return found, loaded.part_of(response, found, task)
    except RecursionError:
        return found, None


async def waited(verifier: AsyncVerifier, response: str, reference: Any, task: Task) -> Judgement:
    """The judgement on one response."""
    started = time.perf_counter()
    faults: list[Verdict] = []
    ask = with_task(verifier.verify_async)
    while True:
        limit = None
        try:
            verdict = storable_verdict(await ask(response, reference, task))
        except RecursionError:
            verdict, limit = too_deep(), Limit.RECURSION
        # The boundary: a verifier that raises has failed, whatever it raises.
        except (Exception, SystemExit) as error:
            verdict = fault_of(error)
        if verdict.outcome is not Outcome.FAULT or faults:
            verdict = replace(verdict, seconds=time.perf_counter() - started)
            return Judgement(verdict, tuple(faults), limit)
        faults.append(verdict)


async def waited_group(
    verify: Callable[..., Awaitable[object]],
    verifier: Any,
    responses: Sequence[str],
    reference: Any,
    tasks: Sequence[Task],
) -> GroupJudgement:
    """The judgement on a group by `verify`, a method of the verifier; tried again where all are faults."""
    started = time.perf_counter()
    faults: list[Verdict] = []
    ask = with_tasks(verify)
    while True:
        try:
            found = parsed(verifier, reference)
            verdicts = checked_verdicts(await ask(list(responses), found, list(tasks)), len(responses))
        # The boundary: a verifier that raises has failed, whatever it raises.
        except (Exception, SystemExit) as error:
            verdicts = [fault_of(error)] * len(responses)
        if faults or not all_faults(verdicts):
            return shared(verdicts, time.perf_counter() - started, faults)
        faults.append(verdicts[0])
