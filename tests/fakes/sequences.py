"""Sequences for packing: tokens count, the rest is plain."""

import dataclasses

from asyncrl.records import ScoredSequence


def sequence(prompt: list[int], response: list[int], **changes: object) -> ScoredSequence:
    size = len(response)
    plain = ScoredSequence("s", prompt, response, [-1.0] * size, [0] * size, [False] * size, 1.0, 0.0)
    return dataclasses.replace(plain, **changes)
