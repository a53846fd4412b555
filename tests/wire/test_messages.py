import dataclasses
import math
import pickle
import random
import sys
from array import array
from collections.abc import Callable

import msgspec
import pytest
from fakes.sequences import sequence, with_observed
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import DiskError, Diverged
from asyncrl.records import Batch, ScoredSequence
from asyncrl.wire.messages import (
    Ending,
    TakeReply,
    decode_take,
    encode_take,
    ending_line,
    find_ending,
    pack_sequences,
    unpack_sequences,
)


def plain(one: ScoredSequence) -> ScoredSequence:
    """With lists for views."""
    values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    return dataclasses.replace(
        one, **{name: list(value) for name, value in values.items() if isinstance(value, memoryview)}
    )


def batch_of(num_tokens: int, *, length: int = 5000, version: int = 7) -> Batch:
    """Responses of `length` tokens, each begun by one version and ended by the next."""
    source = random.Random(0)
    half = length // 2
    sequences = [
        ScoredSequence(
            f"{number // 8}-{number % 8}",
            source.choices(range(150_000), k=100),
            source.choices(range(150_000), k=length),
            [-source.random() for _ in range(length)],
            [version - 1] * half + [version] * (length - half),
            [False] * half + [True] * (length - half),
            source.gauss(0, 1),
            0.5,
            finish="stop",
            outcome="correct",
            source="math",
        )
        for number in range(num_tokens // length)
    ]
    return Batch(version, 1.0, sequences)


def test_a_reply_says_the_same_in_columns():
    rich = dataclasses.replace(
        with_observed(sequence([1, 2], [3, 4, 5, 6]), [(1, 2)]),
        behavior_logprobs=[-0.5, -math.inf, 0.1],
        token_versions=[3, 3, 5],
        are_continued=[False, True, True],
        turn_advantages=[(1, 0.5), (2, -1.0)],
        columns={"kept_sets": bytes(range(7)), "routes": bytes(range(5))},
        is_masked=True,
    )
    other = sequence([1] * 300, [2], columns={"routes": b"abc"})
    rows = [rich, sequence([7], []), other, rich]
    reply = TakeReply(
        Batch(5, 0.7, rows),
        ["http://a"],
        {4: 0.5},
        own_servers=["http://a"],
        heldout_rows=[sequence([1], [2])],
    )
    found = decode_take(encode_take(reply))
    assert found.batch is not None
    expected = dataclasses.replace(rich, behavior_logprobs=array("f", rich.behavior_logprobs).tolist())
    assert [plain(one) for one in found.batch.sequences] == [expected, *rows[1:3], expected]
    assert dataclasses.replace(found, batch=None, heldout_rows=[]) == dataclasses.replace(
        reply, batch=None, heldout_rows=[]
    )
    assert [plain(one) for one in found.heldout_rows] == reply.heldout_rows
    assert found.batch.taken_version == 5 and found.batch.temperature == 0.7


@pytest.mark.parametrize("reply", [TakeReply(None), TakeReply(Batch(0, 1.0, []))])
def test_a_reply_without_sequences_has_none(reply: TakeReply):
    assert decode_take(encode_take(reply)) == reply


def test_what_arrived_is_packed_again_to_the_same_bytes():
    columns = pack_sequences(batch_of(2000, length=500).sequences)
    assert pack_sequences(unpack_sequences(columns)) == columns


def blocks_of(read: Callable[[], object]) -> int:
    """Blocks of memory of Python objects that the result of `read` holds."""
    before = sys.getallocatedblocks()
    found = read()
    blocks = sys.getallocatedblocks() - before
    del found
    return blocks


@pytest.mark.parametrize(
    "num_tokens",
    [500_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_the_columns_of_a_batch_are_small_and_no_objects_for_each_token(num_tokens: int):
    # Beside a batch of lists, as message and as Python objects for each rank.
    reply = TakeReply(batch_of(num_tokens))
    encoded, listed = encode_take(reply), msgspec.msgpack.encode(reply)
    pickled = pickle.dumps(reply)
    # A token id and a log-prob, and the prompts.
    assert len(encoded) < 8.5 * num_tokens
    assert len(encoded) < 0.6 * min(len(listed), len(pickled))
    # Each token of lists is an object or two; of columns a sequence has some views.
    assert blocks_of(lambda: decode_take(encoded)) < num_tokens / 50
    assert blocks_of(lambda: pickle.loads(pickled)) > num_tokens


TEXT = st.text(st.characters(codec="utf-8"))


@given(message=TEXT, before=TEXT, after=TEXT)
def test_whatever_an_error_says_it_comes_to_the_launcher_as_it_was(
    message: str, before: str, after: str
) -> None:
    line = ending_line(Diverged(message))
    assert line.endswith("\n") and len(line.splitlines()) == 1
    assert find_ending(before + line + after) == Ending("Diverged", message)


def test_the_last_whole_ending_counts() -> None:
    first, second = ending_line(Diverged("first")), ending_line(DiskError("second"))
    assert find_ending(first + second) == Ending("DiskError", "second")
    assert find_ending(first + second[:-5]) == Ending("Diverged", "first")
    assert find_ending("DiskError: a sentence alone. It resumes.\n") is None
