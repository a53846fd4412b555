"""Classes of equal answers among the graded responses to a task, as a majority vote counts them.

Answers are compared by the verifier's own equality where it has one (`verifiers.verifier.AnswerVerifier`),
else by their text without space around and repeated space in it.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from asyncrl.records import Score, VerifierSpec
from asyncrl.rollout.grade import Grader
from verifiers.verdict import Outcome

Same = Callable[[str, str], Awaitable[bool]]
"""Whether the second answer is the first."""
Classes = list[list[int]]
"""Places of the responses that give each answer."""


def is_readable(score: Score) -> bool:
    """Whether the verifier says what the answer is. What is wrong may have none that can be read."""
    return score.extracted is not None or score.correctness != 1.0


async def answer_classes(spec: VerifierSpec, scores: Sequence[Score], grader: Grader) -> Classes:
    """The classes of the answers that responses with these scores give, the largest first; without those that
    give none."""
    if not any(score.extracted for score in scores):
        return []
    if not grader.has_equality(spec):
        return _sorted(_by_text(scores, range(len(scores))).values())
    # All correct answers are the gold's.
    right = [place for place, score in enumerate(scores) if score.correctness == 1.0]
    others = [place for place, score in enumerate(scores) if score.correctness != 1.0]

    async def same(first: str, second: str) -> bool:
        return await grader.is_same_answer(spec, first, second)

    wrong = await join_equal(_by_text(scores, others), same)
    return _sorted([*([right] if right else []), *wrong])


async def join_equal(by_text: dict[str, list[int]], same: Same) -> Classes:
    """The classes of answers of which several texts may be one. A text is compared with the first of each
    class so far, the texts that were given most often first."""
    firsts: list[str] = []
    classes: Classes = []
    for text, places in sorted(by_text.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        for first, found in zip(firsts, classes, strict=True):
            if await same(first, text):
                found += places
                break
        else:
            firsts.append(text)
            classes.append(list(places))
    return classes


def _by_text(scores: Sequence[Score], places: Sequence[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in places:
        if (text := _text(scores[place])) is not None:
            found.setdefault(text, []).append(place)
    return found


def _text(score: Score) -> str | None:
    """The answer; None where there is none, which is no vote."""
    if score.extracted is None or score.outcome == Outcome.NO_ANSWER:
        return None
    return " ".join(score.extracted.split()) or None


def _sorted(classes: Iterable[list[int]]) -> Classes:
    return sorted(classes, key=lambda places: (-len(places), min(places)))
