"""Sequences for packing: tokens count, the rest is plain."""

import dataclasses

from asyncrl.records import Sequence


def sequence(prompt: list[int], response: list[int], **changes: object) -> Sequence:
    size = len(response)
    plain = Sequence("s", prompt, response, [-1.0] * size, [0] * size, [False] * size, 1.0, 0.0)
    return dataclasses.replace(plain, **changes)
