import random

import numpy as np
import pytest
import torch
from fakes.sequences import sampled_positions, sequence, with_column, with_observed

from asyncrl.model.column_bytes import ROUTES
from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.columns import input_symbols, present
from asyncrl.trainer.packing.prefix_tree import PackedTree, num_common, pack_tree
from asyncrl.trainer.packing.routes import RouteColumn


def read_rows(tree: PackedTree) -> list[list[int]]:
    return [tree.tokens[row].tolist() for row in tree.rows]


def test_tokens_with_the_same_past_are_packed_once():
    tree = pack_tree([sequence([1, 2], [3, 4, 5]), sequence([1, 2], [3, 6, 7]), sequence([1, 8], [3, 4])])
    assert tree.tokens.tolist() == [1, 2, 3, 4, 6, 8, 3]
    assert tree.positions.tolist() == [0, 1, 2, 3, 3, 1, 2]
    assert read_rows(tree) == [[1, 2, 3, 4], [1, 2, 3, 6], [1, 8, 3]]
    # of each response: what its prompt's last token predicts, then what each of its own tokens does
    assert tree.predicting.tolist() == [1, 2, 3, 1, 2, 4, 5, 6]
    # both first responses begin with 3 after the same prompt: one prediction
    assert tree.copies.tolist() == [0, 1, 2, 0, 3, 4, 5, 6]
    assert tree.distinct.tolist() == [0, 1, 2, 4, 5, 6, 7]


def test_a_response_that_begins_another_needs_no_row_of_its_own():
    tree = pack_tree([sequence([1], [2, 3, 4]), sequence([1], [2, 9]), sequence([1], [2]), sequence([1], [])])
    assert read_rows(tree) == [[1, 2, 3]]
    assert tree.predicting.tolist() == [0, 1, 2, 0, 1, 0]
    targets = np.array([2, 3, 4, 2, 9, 2])
    assert targets[tree.distinct].tolist() == [2, 3, 4, 9] and tree.copies.tolist() == [0, 1, 2, 0, 3, 0]


def test_the_end_of_one_prompt_is_not_taken_for_the_response_to_a_shorter_one():
    tree = pack_tree([sequence([1, 2, 3], [4, 5]), sequence([1], [2, 3, 4, 5])])
    assert tree.tokens.tolist() == [1, 2, 3, 4]
    assert tree.predicting.tolist() == [2, 3, 0, 1, 2, 3]
    targets = np.array([4, 5, 2, 3, 4, 5])
    assert (targets[tree.distinct][tree.copies] == targets).all()


@pytest.mark.parametrize("seed", range(200))
def test_every_sequence_can_be_read_back_and_nothing_is_packed_twice(seed: int):
    source = random.Random(seed)
    vocabulary = source.choice([1, 2, 3, 50])

    def tokens(shortest: int, longest: int) -> list[int]:
        return source.choices(range(vocabulary), k=source.randint(shortest, longest))

    prompts = [tokens(1, 4) for _ in range(source.randint(1, 5))]
    sequences = [sequence(source.choice(prompts), tokens(0, 5)) for _ in range(source.randint(1, 20))]
    tree = pack_tree(sequences)
    wholes = [s.prompt_tokens + s.response_tokens for s in sequences]
    inputs = [s.prompt_tokens + s.response_tokens[:-1] for s in sequences]
    pasts = {tuple(whole[: i + 1]) for whole in inputs for i in range(len(whole))}
    found = {place: tuple(tree.tokens[row[: i + 1]]) for row in tree.rows for i, place in enumerate(row)}
    assert sorted(found) == list(range(len(tree.tokens))) and set(found.values()) == pasts
    assert len(tree.tokens) == len(pasts)
    assert [len(found[place]) - 1 for place in range(len(tree.tokens))] == tree.positions.tolist()
    # each response token is predicted by the token that has all before it as its past
    targets = [t for s in sequences for t in s.response_tokens]
    befores = [
        tuple(whole[:i])
        for s, whole in zip(sequences, wholes, strict=True)
        for i in range(len(s.prompt_tokens), len(whole))
    ]
    assert [found[place] for place in tree.predicting.tolist()] == befores
    kinds = list(zip(befores, targets, strict=True))
    assert [kinds[i] for i in tree.distinct[tree.copies].tolist()] == kinds
    if len({len(s.prompt_tokens) for s in sequences}) == 1:
        assert len(tree.distinct) == len(set(kinds))


def test_observed_tokens_are_inputs_and_no_targets():
    turns = with_observed(sequence([1, 2], [3, 4, 5, 6, 7]), [(1, 3)])
    tree = pack_tree([turns, sequence([1, 2], [3, 4])])
    assert tree.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    # 3 after the prompt, 6 after the observed 5, 7 after 6; then 3 and 4, which is observed above
    assert tree.predicting.tolist() == [1, 4, 5, 1, 2]
    targets = np.array([3, 6, 7, 3, 4])
    assert targets[tree.distinct][tree.copies].tolist() == targets.tolist()
    assert tree.copies[0] == tree.copies[3] and len(tree.distinct) == 4


@pytest.mark.parametrize("seed", range(100))
def test_turns_are_packed_as_their_sampled_tokens_after_all_that_precedes_them(seed: int):
    source = random.Random(seed)

    def turns() -> ScoredSequence:
        response, observed = [source.randrange(2)], []
        for _ in range(source.randint(0, 3)):
            start, size = len(response), source.randint(1, 3)
            observed.append((start, start + size))
            response += source.choices(range(2), k=size + source.randint(1, 3))
        return with_observed(sequence(source.choices([[0], [0, 1]])[0], response), observed)

    sequences = [turns() for _ in range(source.randint(1, 12))]
    tree = pack_tree(sequences)
    found = {place: tuple(tree.tokens[row[: i + 1]]) for row in tree.rows for i, place in enumerate(row)}
    wanted = [
        (tuple(s.prompt_tokens + s.response_tokens[:i]), s.response_tokens[i])
        for s in sequences
        for i in sampled_positions(s)
    ]
    assert [found[place] for place in tree.predicting.tolist()] == [before for before, _ in wanted]
    assert [wanted[i] for i in tree.distinct[tree.copies].tolist()] == wanted
    pasts = {
        (*s.prompt_tokens, *s.response_tokens[:i]) for s in sequences for i in range(len(s.response_tokens))
    }
    assert len(tree.tokens) == len({past[:i] for past in pasts for i in range(1, len(past) + 1)})


def test_common_tokens_are_counted_from_the_start():
    left = np.array([1, 2, 3])
    assert num_common(left, np.array([1, 2, 4, 5])) == 2
    assert num_common(left, left) == 3
    assert num_common(left, np.array([1, 2])) == 2
    assert num_common(left, np.array([], np.int64)) == 0


def test_tokens_that_took_other_experts_are_packed_apart():
    # Rows of one byte. The second took others from its third token on, the third is the first again.
    responses = [([3, 4, 5], b"abcd"), ([3, 4, 6], b"abXd"), ([3, 4, 5], b"abcd")]
    sequences = [sequence([1, 2], response, columns={ROUTES: rows}) for response, rows in responses]
    tree = pack_tree(sequences, input_symbols(sequences, [RouteColumn()]))
    assert tree.tokens.tolist() == [1, 2, 3, 4, 3, 4]
    assert tree.predicting.tolist() == [1, 2, 3, 1, 4, 5, 1, 2, 3]
    # The fifth token is padding.
    routes = RouteColumn().packed(sequences[:1], pack_tree(sequences[:1]), torch.zeros(5, dtype=torch.int64))
    assert routes.is_known.tolist() == [True] * 4 + [False]
    assert routes.rows[:4, 0].tobytes() == b"abcd"


@pytest.mark.parametrize("seed", range(50))
def test_every_sequence_finds_its_own_routes_and_each_is_packed_once(seed: int):
    source = random.Random(seed)

    def tokens(shortest: int, longest: int) -> list[int]:
        return source.choices(range(2), k=source.randint(shortest, longest))

    sequences = []
    for _ in range(source.randint(1, 20)):
        one = sequence(tokens(1, 3), tokens(1, 5))
        rows = bytes(source.choices([0, 0, 0, 1], k=2 * one.num_inputs())) if source.random() < 0.8 else b""
        sequences.append(with_column(one, ROUTES, rows) if rows else one)
    columns = present(sequences, {ROUTES: RouteColumn()})
    tree = pack_tree(sequences, input_symbols(sequences, columns))
    (routes,) = [each.packed(sequences, tree, torch.zeros(len(tree.tokens))) for each in columns] or [None]
    ends = np.cumsum([one.num_sampled() for one in sequences])[:-1]
    for one, places in zip(sequences, np.split(tree.predicting, ends), strict=True):
        # The row that ends at the last prediction is the sequence's whole past.
        row = next(row for row in tree.rows if places[-1] in row)[: one.num_inputs()]
        assert row[-1] == places[-1] and row[-len(places) :].tolist() == places.tolist()
        assert tree.tokens[row].tolist() == (one.prompt_tokens + one.response_tokens)[:-1]
        if ROUTES in one.columns:
            assert routes is not None and routes.is_known[row].all()
            assert routes.rows[row].tobytes() == one.columns[ROUTES]
        else:
            assert routes is None or not routes.is_known[row].any()
    pasts = set()
    for one in sequences:
        inputs = (one.prompt_tokens + one.response_tokens)[: one.num_inputs()]
        rows = one.columns.get(ROUTES, b"")
        pasts |= {(tuple(inputs[:i]), rows[: 2 * i] or None) for i in range(1, len(inputs) + 1)}
    assert len(tree.tokens) == len(pasts)
