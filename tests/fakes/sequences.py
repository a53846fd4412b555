"""Sequences for packing: tokens count, the rest is plain."""

import dataclasses
import itertools
import math
import random

from asyncrl.journal.packing import pack_logprobs, pack_places
from asyncrl.model.column_bytes import (
    KEPT_SETS,
    ROUTES,
    TEACHER_LOGPROBS,
    TEACHER_TOP,
    pack_kept_set,
    pack_top,
)
from asyncrl.records import CREDITS, Batch, ScoredSequence, branch_id


def sampled_positions(one: ScoredSequence) -> list[int]:
    """[T] places of the sampled tokens in the response."""
    return [i for first, end in one.sampled_spans() for i in range(first, end)]


def with_observed(one: ScoredSequence, observed: list[tuple[int, int]]) -> ScoredSequence:
    """The same tokens, with the parts (first, end) of the response observed; its last token stays sampled."""
    places = sampled_positions(dataclasses.replace(one, observed=observed))
    return dataclasses.replace(
        one,
        observed=observed,
        behavior_logprobs=[one.behavior_logprobs[i] for i in places],
        token_versions=[one.token_versions[i] for i in places],
        are_continued=[one.are_continued[i] for i in places],
    )


def with_column(one: ScoredSequence, name: str, values: bytes) -> ScoredSequence:
    return dataclasses.replace(one, columns={**one.columns, name: values})


def without_column(one: ScoredSequence, name: str) -> ScoredSequence:
    return dataclasses.replace(one, columns={key: own for key, own in one.columns.items() if key != name})


def with_credits(one: ScoredSequence, *credits: tuple[int, float]) -> ScoredSequence:
    """With (place among the sampled tokens, reward) each."""
    return with_column(one, CREDITS, pack_places(credits, one.num_sampled()))


def with_turns(batch: Batch) -> Batch:
    """Two turns in each response of more than two tokens, with an observed token between them, advantages of
    their own, and a credit in each; every third response has none of all that."""
    source = random.Random(batch.taken_version)
    sequences = []
    for i, one in enumerate(batch.sequences):
        if i % 3 and len(one.response_tokens) > 2:
            place = source.randrange(1, len(one.response_tokens) - 1)
            one = with_observed(one, [(place, place + 1)])
            first, second = place, one.num_sampled() - place
            later = one.advantage * source.choice([0.0, 1.0, -2.0])
            one = dataclasses.replace(
                one,
                turn_advantages=[(first, one.advantage), (second, later)],
            )
            places = (first - 1, first + second - 1)
            one = with_credits(one, *((place, source.gauss(0, 1)) for place in places))
        sequences.append(one)
    return dataclasses.replace(batch, sequences=sequences)


def with_kept_sets(batch: Batch, vocabulary: int = 40) -> Batch:
    """Each token sampled from a random set of one to nine ids, with about its share of them."""
    source = random.Random(batch.taken_version)
    sequences = []
    for one in batch.sequences:
        tokens = one.sampled_tokens()
        sets = [{token, *source.choices(range(vocabulary), k=source.randrange(9))} for token in tokens]
        logprobs = [-math.log(len(kept)) * source.uniform(0.5, 1.5) for kept in sets]
        packed = b"".join(map(pack_kept_set, tokens, map(sorted, sets)))
        sequences.append(with_column(dataclasses.replace(one, behavior_logprobs=logprobs), KEPT_SETS, packed))
    return dataclasses.replace(batch, sequences=sequences)


def scored_by_teacher(batch: Batch, top_k: int = 0, vocabulary: int = 40) -> Batch:
    """A teacher's log-prob of each sampled token, and its `top_k` likeliest of random ids, whose log-probs
    leave a part of its probability to others; one in seven of them is never sampled by the policy."""
    source = random.Random(batch.taken_version + 7)
    sequences = []
    for one in batch.sequences:
        size = one.num_sampled()
        rows = []
        for _ in range(size):
            shares = [source.uniform(0.01, 1) for _ in range(top_k)]
            total = sum(shares) / source.uniform(0.5, 1)
            ids = source.sample(range(vocabulary), top_k)
            logprobs = [math.log(each / total) if source.randrange(7) else -math.inf for each in shares]
            rows.append(list(zip(logprobs, ids, strict=True)))
        logprobs = pack_logprobs([source.uniform(-4, -0.1) for _ in range(size)])
        one = with_column(one, TEACHER_LOGPROBS, logprobs)
        sequences.append(with_column(one, TEACHER_TOP, pack_top(rows, ())) if top_k else one)
    return dataclasses.replace(batch, sequences=sequences)


def with_routes(batch: Batch, *, num_layers: int = 4, num_experts: int = 4, num_chosen: int = 2) -> Batch:
    """Random experts for each position, those of its past: what begins alike took the same, but for every
    third sequence, which took others all along."""
    sequences = []
    for i, one in enumerate(batch.sequences):
        tokens = [*one.prompt_tokens, *one.response_tokens]
        rows = []
        for end in range(1, one.num_inputs() + 1):
            source = random.Random(f"{batch.taken_version} {i if i % 3 == 2 else None} {tokens[:end]}")
            rows.append(
                b"".join(bytes(source.sample(range(num_experts), num_chosen)) for _ in range(num_layers))
            )
        sequences.append(with_column(one, ROUTES, b"".join(rows)))
    return dataclasses.replace(batch, sequences=sequences)


_NUMBERS = itertools.count()


def sequence(prompt: list[int], response: list[int], **changes: object) -> ScoredSequence:
    size = len(response)
    plain = ScoredSequence(
        f"s{next(_NUMBERS)}", prompt, response, [-1.0] * size, [0] * size, [False] * size, 1.0, 0.0
    )
    return dataclasses.replace(plain, **changes)


def in_pairs(batch: Batch) -> Batch:
    """The first two responses to each prompt as a pair: the second is a branch of the first."""
    sequences = []
    for _, members in itertools.groupby(batch.sequences, key=lambda one: one.sequence_id.rpartition("-")[0]):
        chosen, rejected = list(members)[:2]
        name = branch_id(chosen.sequence_id, 1)
        sequences += [chosen, dataclasses.replace(rejected, sequence_id=name)]
    return dataclasses.replace(batch, sequences=sequences)
