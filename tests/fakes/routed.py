"""A tiny mixture of experts on a real server, and responses with the experts that they took there."""

import asyncio
import random
from pathlib import Path

from fakes.models import VOCABULARY
from families.known import write_tiny
from serving.engine.servers import new_session

from asyncrl.model.column_bytes import row_bytes
from asyncrl.model.folder import read_shape
from asyncrl.records import SamplingParams, ScoredSequence, Trajectory
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.sglang.columns import Routes
from asyncrl.serving.sglang.messages import Prefix, generate_body, stream

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_experts_per_tok": 4}
EXPERTS = {
    "Qwen3MoeForCausalLM": {"num_experts": 16},
    "Glm4MoeForCausalLM": {"n_routed_experts": 16},
    "DeepseekV3ForCausalLM": {"n_routed_experts": 16},
}
"""Architecture -> 16 experts in each layer, but for the first one of GLM-4.5 and of DeepSeek, whose experts
are in groups."""


def write_experts(folder: Path, architecture: str = "Qwen3MoeForCausalLM", *, seed: int = 0) -> Path:
    """No token ends a response, unless a request names one."""
    return write_tiny(folder, architecture, seed=seed, eos_token_id=None, **SIZES, **EXPERTS[architecture])


def make_prompts(seed: int, count: int, *, shortest: int = 3, longest: int = 30) -> list[list[int]]:
    source = random.Random(seed)
    return [source.choices(range(VOCABULARY), k=source.randint(shortest, longest)) for _ in range(count)]


async def continue_routed(
    url: str, folder: Path, trajectories: list[Trajectory], sampling: SamplingParams, *, salt: str = "s"
) -> None:
    """Appends what a server samples next to each, as a run does: streamed, with the experts that it took."""
    columns = (Routes(row_bytes(read_shape(folder))),)
    prefixes, confirmations = [], {}
    for one in trajectories:
        tokens = [*one.prompt_tokens, *one.response_tokens()]
        first = one.num_computed()
        prefixes.append(
            Prefix(f"{salt}-{one.trajectory_id}", tokens, sampling.max_new_tokens, num_computed=first)
        )
        confirmations[prefixes[-1].request_id] = (
            one,
            Confirmation(0, columns=columns, num_context=len(tokens) - 1 - first),
        )
    body = generate_body(prefixes, sampling, salt=salt, columns=columns)
    async with new_session() as session:
        async for chunk in stream(session, url, body, columns):
            trajectory, confirmation = confirmations[chunk.request_id]
            for segment in confirmation.feed(chunk):
                trajectory.extend(segment)


def sample_routed(
    url: str, folder: Path, prompts: list[list[int]], *, num_tokens: int = 48, temperature: float = 1.0
) -> list[ScoredSequence]:
    """One response to each prompt. The advantages of neighbours are opposite."""
    sampling = SamplingParams(temperature, num_tokens, (10 * VOCABULARY,))
    trajectories = [Trajectory(str(i), tuple(prompt)) for i, prompt in enumerate(prompts)]
    asyncio.run(continue_routed(url, folder, trajectories, sampling, salt=str(random.random())))
    return [ScoredSequence.of(one, reward=1.0, advantage=(-1.0) ** i) for i, one in enumerate(trajectories)]
