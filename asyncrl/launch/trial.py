"""A trial of each verifier before a run starts: one row's gold and one answer that is nonsense, in the pool.

A verifier that fails on both would drop every group of the run. A gold must pass as its own answer only where
it is an answer: the solution of a code row is graded; any verdict will do for other golds, such as a pattern
or a schema for a verifier of the user's.
"""

import asyncio
from collections.abc import Iterator

from asyncrl.errors import InputError
from asyncrl.recipe import Verifying
from asyncrl.rollout.verifier_cache import GoldExample, VerifierCache
from verifiers.gym.verifier import GymReference, own_response
from verifiers.pool import VerifierPool, waited
from verifiers.verdict import Outcome, Verdict
from verifiers.verifier import AsyncVerifier

ANSWERED_BY_GOLD = ("math", "exact", "numeric", "choice")
NONSENSE = "qwxz \\boxed{qwxz vbnk}"
MAX_WAIT_SECONDS = 120.0
"""For one response, two attempts included, of a verifier that waits for something else: the built-in ones end
far sooner by limits of their own."""
NO_THINKING = "<think>\n</think>\n"


def try_verifiers(verifiers: VerifierCache, verifying: Verifying) -> None:
    """Raises InputError for the first verifier that fails, naming the row it was tried on."""
    if verifiers.examples:
        asyncio.run(_try_all(list(verifiers.examples.values()), verifiers, verifying))


async def _try_all(examples: list[GoldExample], verifiers: VerifierCache, verifying: Verifying) -> None:
    async with VerifierPool(timeout_seconds=verifying.timeout_seconds) as pool:
        for example in examples:
            await _try_one(example, pool, verifiers)


async def _try_one(example: GoldExample, pool: VerifierPool, verifiers: VerifierCache) -> None:
    name = example.verifier.name

    async def verdict_on(response: str) -> Verdict:
        verdict = await _verdict(example, response, pool, verifiers)
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


async def _verdict(
    example: GoldExample, response: str, pool: VerifierPool, verifiers: VerifierCache
) -> Verdict:
    verifier = verifiers.get(example.verifier)
    if not isinstance(verifier, AsyncVerifier):
        name, options = example.verifier.name, example.verifier.options
        return await pool.verify(name, options, response, example.reference, folder=verifiers.folder)
    # It has a sandbox or a connection of its own, which is there already: the pool would open another one.
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            return await waited(verifier, response, example.reference)
    except TimeoutError:
        raise InputError(
            f'{example.where}: the verifier "{example.verifier.name}" has not returned from verify_async on '
            f"{response[:80]!r} after {MAX_WAIT_SECONDS:g} s. Give what it waits for a time limit of its own."
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
