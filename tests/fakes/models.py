"""Tiny real models, written by transformers, and what transformers itself computes for them.

`random_batch` needs no transformers, whose import takes a second.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import torch

from asyncrl.records import Batch, ScoredSequence

VOCABULARY = 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}


def write_model(folder: Path, family: str = "Qwen3", *, seed: int = 0, **overrides: object) -> Path:
    """A model of `family` (Llama, Qwen2, Qwen3) with random weights, large enough for logits to matter."""
    import transformers

    sizes = SIZES | ({"head_dim": 16} if family == "Qwen3" else {}) | overrides
    config = getattr(transformers, f"{family}Config")(**sizes)
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    # Biases of routers are buffers.
    biases = ((name, buffer) for name, buffer in model.named_buffers() if "correction_bias" in name)
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *biases):
            noise = torch.randn(parameter.shape, generator=generator)
            # Norms and biases start at exactly 1 and 0, where mixing them up would not show.
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    model.save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path, ids: Iterable[int], *, pad: int | None = None) -> Path:
    """A tokenizer.json that has tokens of these ids alone; `pad` is one more."""
    words = {f"t{i}": i for i in ids}
    added = [] if pad is None else [{"id": pad, "content": "<pad>", "special": True}]
    content = {"added_tokens": added, "model": {"type": "WordLevel", "vocab": words}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"} if added else {}))
    return folder


def reference_model(folder: Path, **settings: object) -> torch.nn.Module:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **settings).eval()


def reference_logprobs(model: torch.nn.Module, sequence: ScoredSequence, temperature: float) -> torch.Tensor:
    """[response] log-probs of one sequence alone, with gradient."""
    tokens = torch.tensor([sequence.prompt_tokens + sequence.response_tokens])
    logits = model(tokens).logits[0, len(sequence.prompt_tokens) - 1 : -1] / temperature
    targets = torch.tensor(sequence.response_tokens)
    return torch.log_softmax(logits, -1)[torch.arange(len(targets)), targets]


def random_batch(
    step: int,
    *,
    num_groups: int = 4,
    group_size: int = 3,
    longest: int = 12,
    temperature: float = 1.0,
    vocabulary: int = VOCABULARY,
    num_silent: int = 0,
) -> Batch:
    """A batch that depends on `step` alone: groups share prompts, lengths differ, some tokens are stale. The
    first `num_silent` groups have advantages of 0."""
    source = random.Random(step)
    sequences = []
    for group in range(num_groups):
        prompt = [source.randrange(vocabulary) for _ in range(source.randint(1, 9))]
        for member in range(group_size):
            length = source.randint(1, longest)
            sequences.append(
                ScoredSequence(
                    sequence_id=f"{step}-{group}-{member}",
                    prompt_tokens=prompt,
                    response_tokens=[source.randrange(vocabulary) for _ in range(length)],
                    behavior_logprobs=[-4.0 + 2.0 * source.random() for _ in range(length)],
                    token_versions=sorted(max(0, step - source.randint(0, 2)) for _ in range(length)),
                    are_continued=[False] * length,
                    advantage=source.gauss(0, 1) * (group >= num_silent),
                    reward=0.0,
                )
            )
    return Batch(step, temperature, sequences)
