"""Linear attention on a CPU server: what a request computes in parts is what it computes at once."""

from typing import Any

import torch

from asyncrl.serving.engine.cpu import delta_net

GROUPS, RATIO, KEY, VALUE, WIDTH = 2, 2, 6, 4, 4
HEADS = GROUPS * RATIO
CHANNELS = 9
LENGTHS = (70, 5)
SLOTS = torch.tensor([3, 1], dtype=torch.int32)


def edges(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def of_requests(tokens: torch.Tensor, dim: int, begins: tuple[int, ...], ends: tuple[int, ...]) -> Any:
    """Tokens `begins` to `ends` of each request, of those of all requests one after the other."""
    starts = edges(LENGTHS).tolist()
    spans = [torch.arange(s + a, s + b) for s, a, b in zip(starts, begins, ends, strict=False)]
    return tokens.index_select(dim, torch.cat(spans))


def test_states_are_those_of_prompts_and_tokens_together() -> None:
    torch.manual_seed(0)
    total = sum(LENGTHS)
    q, k = (torch.randn(1, total, GROUPS, KEY) for _ in "qk")
    v, steps, beta = torch.randn(1, total, HEADS, VALUE), torch.randn(total, HEADS), torch.randn(total, HEADS)
    rates, bias = torch.randn(HEADS), torch.randn(HEADS)

    def prompts(pool: torch.Tensor, begins: tuple[int, ...], ends: tuple[int, ...]) -> torch.Tensor:
        own = [of_requests(x, 1, begins, ends) for x in (q, k, v)]
        g, b = delta_net.gates(rates, *(of_requests(x, 0, begins, ends) for x in (steps, beta)), bias)
        lengths = edges(tuple(b - a for a, b in zip(begins, ends, strict=True)))
        names = dict(zip("qkv", own, strict=True)) | {"g": g, "beta": b, "cu_seqlens": lengths}
        output, _, _ = delta_net.run_prompts(**names, initial_state=pool, initial_state_indices=SLOTS)
        return output

    def tokens(pool: torch.Tensor, places: tuple[int, ...]) -> torch.Tensor:
        ends = tuple(place + 1 for place in places)
        own = [of_requests(x, 1, places, ends) for x in (q, k, v)]
        a, b = (of_requests(x, 0, places, ends) for x in (steps, beta))
        names = dict(zip("qkv", own, strict=True)) | {"a": a, "b": b, "A_log": rates, "dt_bias": bias}
        return delta_net.run_tokens(**names, initial_state_source=pool, initial_state_indices=SLOTS)

    whole, parts = (torch.zeros(5, HEADS, VALUE, KEY) for _ in range(2))
    expected = prompts(whole, (0, 0), LENGTHS)
    found = [prompts(parts, (0, 0), (40, 2)), prompts(parts, (40, 2), (69, 3))]
    found += [tokens(parts, (69, 3))]
    wanted = of_requests(expected, 1, (69, 3), (70, 4))
    torch.testing.assert_close(found[-1], wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[0], of_requests(expected, 1, (0, 0), (40, 2)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(parts[3], whole[3], atol=1e-5, rtol=1e-4)
    assert not parts[[0, 2, 4]].any(), "slots of other requests"


def test_inputs_of_the_convolution_are_kept_for_the_next_part() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(CHANNELS, sum(LENGTHS)), torch.randn(CHANNELS, WIDTH)

    def prompts(pool: torch.Tensor, begins: tuple[int, ...], ends: tuple[int, ...]) -> torch.Tensor:
        return delta_net.convolve_prompts(
            of_requests(x, 1, begins, ends),
            weight,
            None,
            activation="silu",
            conv_states=pool,
            has_initial_state=torch.tensor(begins) > 0,
            cache_indices=SLOTS,
            query_start_loc=edges(tuple(b - a for a, b in zip(begins, ends, strict=True))),
        )

    # What an earlier request left is not read.
    whole, parts = (torch.full((5, CHANNELS, WIDTH - 1), 9.0) for _ in range(2))
    expected = prompts(whole, (0, 0), LENGTHS)
    alone = torch.nn.functional.pad(x[:, :70][None], (WIDTH - 1, 0))
    reference = torch.nn.functional.conv1d(alone, weight[:, None], groups=CHANNELS)[0]
    torch.testing.assert_close(expected[:, :70], torch.nn.functional.silu(reference))
    first = prompts(parts, (0, 0), (69, 2))
    torch.testing.assert_close(first[:, :69], expected[:, :69])
    last = delta_net.convolve_tokens(
        of_requests(x, 1, (69, 2), (70, 3)).t(), parts, weight, None, "silu", conv_state_indices=SLOTS
    )
    torch.testing.assert_close(last.t(), of_requests(expected, 1, (69, 2), (70, 3)))
    torch.testing.assert_close(parts[3], x[:, 67:70])
