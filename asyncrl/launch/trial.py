"""A trial of each verifier before a run starts: one row's gold and one answer that is nonsense, in the pool.

A verifier that fails on both would drop every group of the run, and one of the user's that meets a limit on
both would find every response wrong. A gold must pass as its own answer only where
it is an answer: the solution of a code row is graded; any verdict will do for other golds, such as a pattern
or a schema for a verifier of the user's.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from asyncrl.errors import InputError
from asyncrl.observe.terminal.stage import LateStage
from asyncrl.recipe import Verifying
from asyncrl.tasks.verifier_cache import GoldExample, VerifierCache
from verifiers.attempt import waited, waited_group
from verifiers.gym import GymReference, own_response
from verifiers.judgement import Judgement, Limit, is_group_wise, judges_alone, min_responses
from verifiers.own import Gold, is_built_in
from verifiers.pool import VerifierPool
from verifiers.task import response_task
from verifiers.verdict import Outcome, Verdict
from verifiers.verifier import AsyncVerifier

T = TypeVar("T")
ANSWERED_BY_GOLD = ("math", "exact", "numeric", "choice")
NONSENSE = "qwxz \\boxed{qwxz vbnk}"
MAX_WAIT_SECONDS = 120.0
"""For one response, two attempts included, of a verifier that waits for something else: the built-in ones end
far sooner by limits of their own."""
TICK_SECONDS = 0.5
"""Between two looks at the clock, whether to show what is tried."""
NO_THINKING = "<think>\n</think>\n"


def try_verifiers(verifiers: VerifierCache, verifying: Verifying) -> None:
    """Raises InputError for the first verifier that fails, naming the row it was tried on."""
    if verifiers.examples:
        asyncio.run(_try_all(list(verifiers.examples.values()), verifiers, verifying))


async def _try_all(examples: list[GoldExample], verifiers: VerifierCache, verifying: Verifying) -> None:
    async with VerifierPool(timeout_seconds=verifying.timeout_seconds) as pool:
        for example in examples:
            title = f'trying the verifier "{example.verifier.name}" on {example.where}'
            await shown(_try_one(example, pool, verifiers), title, "no verdict yet")


async def shown(work: Coroutine[Any, Any, None], title: str, state: str) -> None:
    """Awaits `work`, under its title and state once it has taken a few seconds."""
    task = asyncio.ensure_future(work)
    try:
        with LateStage(title) as progress:
            while not task.done():
                await asyncio.wait({task}, timeout=TICK_SECONDS)
                progress.show(state)
            await task
    finally:
        task.cancel()


async def _try_one(example: GoldExample, pool: VerifierPool, verifiers: VerifierCache) -> None:
    verifier = verifiers.get(example.verifier)
    if is_group_wise(verifier):
        await _try_group(example, pool, verifiers)
    if judges_alone(verifier):
        await _try_alone(example, pool, verifiers)


async def _try_group(example: GoldExample, pool: VerifierPool, verifiers: VerifierCache) -> None:
    """The gold as an answer, where it can be said, beside nonsense."""
    name, options = example.verifier.name, example.verifier.options
    verifier: Any = verifiers.get(example.verifier)
    more = (f"{NONSENSE} {place}" for place in itertools.count(1))
    responses = [next(responses_of(example), next(more)), NONSENSE]
    responses += itertools.islice(more, max(0, min_responses(verifier) - 2))
    tasks = [response_task(response, example.task) for response in responses]
    if is_built_in(verifier):
        work = waited_group(verifier.verify_group_async, verifier, responses, example.reference, tasks)
    else:
        work = pool.judge_group(
            name, options, responses, Gold(example.gold), folder=verifiers.folder, tasks=lambda: tasks
        )
    waits = hasattr(verifier, "verify_group_async")
    found = await (_in_time(work, example, "verify_group_async on a group") if waits else work)
    failed = next((each for each in found.verdicts if each.outcome is Outcome.FAULT), None)
    if failed is not None:
        raise InputError(
            f'{example.where}: the verifier "{name}" gives no verdict on a group of {len(responses)} '
            f"responses: {failed.detail}. It is called as verify_group(responses, reference) and returns a "
            f"verifiers.verdict.Verdict for each, in a list; `asyncrl verify --contract` tries it out."
        )


async def _try_alone(example: GoldExample, pool: VerifierPool, verifiers: VerifierCache) -> None:
    name = example.verifier.name

    async def verdict_on(response: str) -> Verdict:
        judged = await _judged(example, response, pool, verifiers)
        verdict = judged.verdict
        if judged.limit is not None and not is_built_in(verifiers.get(example.verifier)):
            way_out = "`asyncrl verify` tries it out."
            if judged.limit is Limit.TIME:
                way_out = "Make it faster, or raise verifying.timeout_seconds."
            raise InputError(
                f'{example.where}: the verifier "{name}" meets a limit on {response[:80]!r}: '
                f"{verdict.detail}. So it would find every response wrong. {way_out}"
            )
        if verdict.outcome is Outcome.FAULT:
            raise InputError(
                f'{example.where}: the verifier "{name}" gives no verdict on {response[:80]!r}: '
                f"{verdict.detail}. It is called as verify(response, reference) and returns a "
                f"verifiers.verdict.Verdict; `asyncrl verify` tries it out."
            )
        return verdict

    found: list[Verdict] = []
    for response in responses_of(example):
        found.append(await verdict_on(response))
        if found[-1].outcome is Outcome.CORRECT:
            break
    nonsense = await verdict_on(NONSENSE)
    if not found or not _is_answered_by_gold(example):
        return
    if found[-1].outcome is not Outcome.CORRECT:
        raise InputError(
            f'{example.where}: the verifier "{name}" finds the row\'s own '
            f"{'solution' if name == 'code' else 'gold'} {found[0].outcome.value}: {found[0].detail}. "
            f"Correct the row or the verifier's options; `asyncrl verify-data` looks at every row."
        )
    if nonsense.outcome is Outcome.CORRECT:
        raise InputError(
            f'{example.where}: the verifier "{name}" finds {NONSENSE!r} correct. Correct the row or the '
            f"verifier's options; `asyncrl verify-data` looks at every row."
        )


async def _judged(
    example: GoldExample, response: str, pool: VerifierPool, verifiers: VerifierCache
) -> Judgement:
    verifier = verifiers.get(example.verifier)
    name, options = example.verifier.name, example.verifier.options
    reference = example.reference if is_built_in(verifier) else Gold(example.gold)
    task = partial(response_task, response, example.task)
    if not isinstance(verifier, AsyncVerifier):
        return await pool.judge(name, options, response, reference, folder=verifiers.folder, task=task)
    # A built-in one has a sandbox or a connection of its own, which is there already: the pool would open
    # another one. One of the user's may block the loop that it is awaited in, which must not be this one.
    if is_built_in(verifier):
        work = waited(verifier, response, reference, task())
    else:
        work = pool.judge(name, options, response, reference, folder=verifiers.folder, task=task)
    return await _in_time(work, example, f"verify_async on {response[:80]!r}")


async def _in_time(work: Awaitable[T], example: GoldExample, called: str) -> T:
    """Awaits a verifier that waits. Raises InputError when it takes too long."""
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            return await work
    except TimeoutError:
        raise InputError(
            f'{example.where}: the verifier "{example.verifier.name}" has not returned from {called} after '
            f"{MAX_WAIT_SECONDS:g} s. Give what it waits for a time limit of its own."
        ) from None


def responses_of(example: GoldExample) -> Iterator[str]:
    """Responses that say the row's gold, as far as it can be said: one of them should be CORRECT."""
    gold = example.gold
    if isinstance(example.reference, GymReference):
        if (own := own_response(example.reference)) is not None:
            yield own
        return
    if example.verifier.name == "code":
        if isinstance(gold, dict) and isinstance(gold.get("solution"), str):
            yield f"{NO_THINKING}```{gold.get('lang', '')}\n{gold['solution']}\n```"
        return
    if isinstance(gold, list) and gold:
        gold = gold[0]
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)):
        return
    text = str(gold).rpartition("####")[2].strip()
    for answer in (f"\\boxed{{{text}}}", text, f"#### {text}", f"The answer is {text}", str(gold)):
        yield answer
        yield NO_THINKING + answer


def _is_answered_by_gold(example: GoldExample) -> bool:
    """Whether the gold must pass as an answer; for a list, that depends on the verifier."""
    return example.verifier.name in ("code", "gym") or (
        example.verifier.name in ANSWERED_BY_GOLD and not isinstance(example.gold, list)
    )
