"""The gated delta rule over a tree of chunks against the rule itself, token by token."""

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.serving.kernels.delta_rule import (
    LARGEST_CHUNK,
    causal_convolution,
    gated_delta_rule,
    make_chunk_tree,
    unit_length,
)

GROUPS, RATIO, KEY, VALUE = 2, 3, 5, 4
ROWS = {
    "one": [np.arange(7)],
    "long": [np.arange(150), np.arange(150, 155)],
    # Parting after 80 tokens, after the first and inside of what only two share.
    "tree": [
        np.arange(100),
        np.concatenate([np.arange(80), np.arange(100, 170)]),
        np.concatenate([np.arange(80), np.arange(100, 110), np.arange(170, 172)]),
        np.concatenate([np.arange(1), np.arange(172, 175)]),
    ],
}


def inputs(num_tokens: int) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = ((GROUPS, KEY), (GROUPS, KEY), (GROUPS, RATIO, VALUE), (GROUPS, RATIO), (GROUPS, RATIO))
    query, key, value, decay, beta = (torch.randn(num_tokens, *size) for size in sizes)
    return [x.requires_grad_() for x in (query, key, value, -decay.exp() / 4, beta.sigmoid())]


def by_token(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """S = exp(g) S + b (v - exp(g) S k) k^T and S q of one sequence; the last state too."""
    query, key = unit_length(query) * KEY**-0.5, unit_length(key)
    state, outputs = torch.zeros(GROUPS, RATIO, KEY, VALUE), []
    for q, k, v, g, b in zip(query, key, value, decay, beta, strict=True):
        state = state * g.exp()[..., None, None]
        change = b[..., None] * (v - torch.einsum("grkv,gk->grv", state, k))
        state = state + torch.einsum("gk,grv->grkv", k, change)
        outputs.append(torch.einsum("grkv,gk->grv", state, q))
    return torch.stack(outputs), state


@pytest.mark.parametrize("name", ROWS)
def test_outputs_and_gradients_are_those_of_each_sequence_token_by_token(name: str) -> None:
    rows = ROWS[name]
    num_tokens = 1 + max(int(row.max()) for row in rows)
    tree = make_chunk_tree(rows, num_tokens, torch.device("cpu"))
    ours, theirs = inputs(num_tokens), inputs(num_tokens)
    found, _ = gated_delta_rule(*ours, tree)
    slopes = torch.randn(num_tokens, GROUPS, RATIO, VALUE)
    (found * slopes).sum().backward()
    seen = np.zeros(num_tokens, bool)
    for row in rows:
        expected, _ = by_token(*(x[row] for x in theirs))
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)
        is_new = ~seen[row]
        seen[row] = True
        (expected * slopes[row] * torch.from_numpy(is_new)[:, None, None, None]).sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-5, rtol=1e-3)


def test_a_sequence_continues_from_the_state_that_its_first_part_left() -> None:
    every = [x.detach() for x in inputs(70)]
    expected, last = by_token(*every)
    parts = make_chunk_tree([np.arange(30)], 30, torch.device("cpu"))
    nothing = torch.zeros(1, GROUPS, RATIO, KEY, VALUE)
    _, states = gated_delta_rule(*(x[:30] for x in every), parts, nothing)
    rest = make_chunk_tree([np.arange(40)], 40, torch.device("cpu"))
    found, states = gated_delta_rule(*(x[30:] for x in every), rest, states[-1:])
    torch.testing.assert_close(found, expected[30:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(states[-1], last, atol=1e-5, rtol=1e-4)


def test_a_token_is_convolved_with_those_before_it_in_its_sequence_alone() -> None:
    rows = ROWS["tree"]
    tree = make_chunk_tree(rows, 175, torch.device("cpu"))
    tokens, weight = torch.randn(175, 6), torch.randn(6, 1, 4)
    found = causal_convolution(tokens, weight, tree)
    for row in rows:
        alone = torch.nn.functional.pad(tokens[row].t()[None], (3, 0))
        expected = torch.nn.functional.conv1d(alone, weight, groups=6)[0].t()
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)


def test_chunks_are_stretches_that_sequences_pass_as_a_whole() -> None:
    tree = make_chunk_tree(ROWS["tree"], 175, torch.device("cpu"))
    places = [[token for token in row if token < 175] for row in tree.places.tolist()]
    assert sorted(token for chunk in places for token in chunk) == list(range(175))
    assert max(map(len, places)) <= LARGEST_CHUNK
    for row in ROWS["tree"]:
        own = set(row.tolist())
        assert all(own.issuperset(chunk) or own.isdisjoint(chunk) for chunk in places)
    assert [count for count, _ in tree.levels] == [1, 2, 1, 2, 2, 0][: len(tree.levels)]
