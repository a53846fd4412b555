"""Sequences for packing: tokens count, the rest is plain."""

import dataclasses
import itertools

from asyncrl.records import ScoredSequence


def with_observed(one: ScoredSequence, observed: list[tuple[int, int]]) -> ScoredSequence:
    """The same tokens, with the parts (first, end) of the response observed; its last token stays sampled."""
    places = dataclasses.replace(one, observed=observed).sampled_positions()
    return dataclasses.replace(
        one,
        observed=observed,
        behavior_logprobs=[one.behavior_logprobs[i] for i in places],
        token_versions=[one.token_versions[i] for i in places],
        are_continued=[one.are_continued[i] for i in places],
    )


_NUMBERS = itertools.count()


def sequence(prompt: list[int], response: list[int], **changes: object) -> ScoredSequence:
    size = len(response)
    plain = ScoredSequence(
        f"s{next(_NUMBERS)}", prompt, response, [-1.0] * size, [0] * size, [False] * size, 1.0, 0.0
    )
    return dataclasses.replace(plain, **changes)
