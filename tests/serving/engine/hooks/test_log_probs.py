"""A real server never samples what no text contains, though its logits are the largest, and scores a text by
the distribution that it would sample from."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from serving.engine.servers import NEVER, VOCABULARY, load_model, new_session, post

from asyncrl.errors import RequestRefused, ServerError
from asyncrl.model.unsampled import Unsampled, find_unsampled
from asyncrl.serving.sglang import hooks
from asyncrl.serving.sglang.scores import TopRow, knows_temperatures, score

PROMPTS = [[5, 6, 7], [8, 9], [2, 3, 4, 5, 6]]
WAYS: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 1.0},
    "tempered": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    # SGLang samples these itself.
    "of_few": {"temperature": 1.0, "top_k": 3},
    "of_most": {"temperature": 1.0, "top_p": 0.9},
}


def generate(url: str, way: str) -> list[dict[str, Any]]:
    settings = WAYS[way] | {"max_new_tokens": 24, "ignore_eos": True}
    body = {"input_ids": PROMPTS, "sampling_params": settings, "return_logprob": True}

    async def send() -> Any:
        async with new_session() as session:
            return await post(session, f"{url}/generate", body)

    return asyncio.run(send())


@torch.no_grad()
def wanted_logprobs(folder: Path, prompt: list[int], tokens: list[int], temperature: float) -> list[float]:
    """Log-probs of the distribution without NEVER, to which the largest logits belong."""
    logits = load_model(folder)(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    is_largest = torch.isin(logits.argmax(-1), torch.tensor(NEVER))
    assert is_largest.float().mean() > 0.75
    masked = logits.index_fill(1, torch.tensor(NEVER), -math.inf) / temperature
    return torch.log_softmax(masked, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_token_that_no_text_contains_is_never_sampled(masked_engine: tuple[str, Path], way: str):
    url, folder = masked_engine
    for prompt, reply in zip(PROMPTS, generate(url, way), strict=True):
        tokens = reply["output_ids"]
        assert len(tokens) == 24 and not set(tokens) & set(NEVER)
        found = [value for value, *_ in reply["meta_info"]["output_token_logprobs"]]
        wanted = wanted_logprobs(folder, prompt, tokens, WAYS[way]["temperature"] or 1.0)
        assert found == pytest.approx(wanted, abs=1e-5)


def test_the_server_says_what_it_never_samples_and_another_mask_is_refused(
    masked_engine: tuple[str, Path],
):
    url, folder = masked_engine

    async def check(unsampled: Unsampled) -> None:
        async with new_session() as session:
            await hooks.check_hooks(session, url, unsampled=unsampled)

    asyncio.run(check(find_unsampled(folder)))
    with pytest.raises(ServerError, match=r"never samples the tokens '20-23', the run never samples"):
        asyncio.run(check(Unsampled((20,))))


TEXTS = [[5, 6, 7, 1, 2, 3, 9], [8, 9, 0, 4], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_a_text_has_the_log_probs_of_transformers_at_the_temperature(
    masked_engine: tuple[str, Path], temperature: float
):
    url, folder = masked_engine

    async def ask() -> list[tuple[list[float], list[TopRow]]]:
        async with new_session() as session:
            return await asyncio.gather(
                *(
                    score(session, url, text, first=2, temperature=temperature, timeout_seconds=60.0)
                    for text in TEXTS
                )
            )

    for text, (found, _) in zip(TEXTS, asyncio.run(ask()), strict=True):
        assert found == pytest.approx(wanted_logprobs(folder, text[:2], text[2:], temperature), abs=1e-5)


def test_the_likeliest_tokens_are_those_at_the_temperature_and_none_that_is_never_sampled(
    masked_engine: tuple[str, Path],
):
    url, folder = masked_engine

    async def ask() -> list[TopRow]:
        async with new_session() as session:
            _, rows = await score(
                session, url, TEXTS[0], first=2, temperature=0.7, timeout_seconds=60.0, top_k=22
            )
            return rows

    rows = asyncio.run(ask())
    assert len(rows) == len(TEXTS[0]) - 2
    num_possible = VOCABULARY - len(NEVER)
    for i, row in enumerate(rows):
        text = TEXTS[0][: 2 + i]
        possible = [(logprob, token) for logprob, token in row if logprob > -math.inf]
        assert len(row) == 22 and len(possible) == min(22, num_possible)
        assert not {token for _, token in possible} & set(NEVER)
        assert possible == sorted(possible, reverse=True)
        for logprob, token in possible[:3]:
            assert wanted_logprobs(folder, text, [token], 0.7) == pytest.approx([logprob], abs=1e-5)


def test_what_it_says_of_its_own_tokens_it_says_of_them_as_a_text(masked_engine: tuple[str, Path]):
    url, _ = masked_engine

    async def ask() -> tuple[list[float], list[float]]:
        async with new_session() as session:
            settings = {"temperature": 0.7, "max_new_tokens": 12, "ignore_eos": True}
            body = {"input_ids": TEXTS[0], "sampling_params": settings, "return_logprob": True}
            # Beside texts that are scored in the same batch at other temperatures.
            said, *_ = await asyncio.gather(
                post(session, f"{url}/generate", body),
                *(
                    score(session, url, text, first=1, temperature=1.6, timeout_seconds=60.0)
                    for text in TEXTS
                ),
            )
            text, first = [*TEXTS[0], *said["output_ids"]], len(TEXTS[0])
            of_own = [logprob for logprob, *_ in said["meta_info"]["output_token_logprobs"]]
            found, _ = await score(session, url, text, first=first, temperature=0.7, timeout_seconds=60.0)
            return of_own, found

    of_own, of_text = asyncio.run(ask())
    assert of_text == pytest.approx(of_own, abs=1e-5)


def test_texts_that_it_cannot_score_are_refused(masked_engine: tuple[str, Path]):
    url, _ = masked_engine

    async def ask(text: list[int]) -> None:
        async with new_session() as session:
            assert await knows_temperatures(session, url)
            await score(session, url, text, first=1, temperature=1.0, timeout_seconds=60.0)

    with pytest.raises(RequestRefused, match="longer than the model's context"):
        asyncio.run(ask([5] * 2048))
    with pytest.raises(RequestRefused, match=r"the token 20 the log-prob"):
        asyncio.run(ask([5, NEVER[0], 6]))
