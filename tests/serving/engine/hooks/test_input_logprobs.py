"""A real server scores a text by the distribution that it would sample from: at the temperature that is asked
for, without the tokens that are never sampled."""

import asyncio
import math
from pathlib import Path

import pytest
from serving.engine.hooks.test_unsampled import wanted_logprobs
from serving.engine.servers import NEVER, VOCABULARY, new_session, post

from asyncrl.errors import RequestRefused
from asyncrl.serving.sglang.scores import TopRow, knows_temperatures, score, score_with_top

TEXTS = [[5, 6, 7, 1, 2, 3, 9], [8, 9, 0, 4], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_a_text_has_the_log_probs_of_transformers_at_the_temperature(
    masked_engine: tuple[str, Path], temperature: float
):
    url, folder = masked_engine

    async def ask() -> list[list[float]]:
        async with new_session() as session:
            return await asyncio.gather(
                *(
                    score(session, url, text, first=2, temperature=temperature, timeout_seconds=60.0)
                    for text in TEXTS
                )
            )

    for text, found in zip(TEXTS, asyncio.run(ask()), strict=True):
        assert found == pytest.approx(wanted_logprobs(folder, text[:2], text[2:], temperature), abs=1e-5)


def test_the_likeliest_tokens_are_those_at_the_temperature_and_none_that_is_never_sampled(
    masked_engine: tuple[str, Path],
):
    url, folder = masked_engine

    async def ask() -> list[TopRow]:
        async with new_session() as session:
            _, rows = await score_with_top(
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
            return of_own, await score(session, url, text, first=first, temperature=0.7, timeout_seconds=60.0)

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
