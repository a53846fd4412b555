"""A real server never samples what no text contains, though its logits are the largest."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from serving.engine.servers import NEVER, load_model, new_session, post

from asyncrl.errors import ServerError
from asyncrl.model.unsampled import Unsampled, find_unsampled
from asyncrl.serving.sglang import hooks

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
