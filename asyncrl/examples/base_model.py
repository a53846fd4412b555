"""Trains the small base models of the examples.

Owns the model's shape and the plain next-token training on a corpus. Not a trainer to build on: one process,
no checkpoints, no evaluation; the run that follows measures the base model first.

Legend: B sequences of a batch, L longest of them in tokens.
"""

import math
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from asyncrl.examples.rows import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    VOCABULARY,
    Example,
    Pretraining,
    Progress,
    write_tokenizer,
)

Row = tuple[list[int], list[bool]]
"""The ids of an example, end of text included, and which of them are learned."""
Batch = list[tuple[torch.Tensor, torch.Tensor]]
"""Micro-batches of (tokens, targets), both [B, L-1]; a target of IGNORED is prompt, observed or padding."""
IGNORED = -100
MAX_STRETCH = 1.5
"""The longest row of a micro-batch over its shortest: closer to 1 is less padding but more calls."""


def make_base_model(
    folder: Path,
    tokenizer: Tokenizer,
    examples: Iterable[Example],
    settings: Pretraining,
    progress: Progress,
    *,
    max_position_embeddings: int = 256,
    hidden_size: int = 128,
    chat_template: str = "",
) -> None:
    """Trains a new model on `examples`, in their order. Writes weights, tokenizer and a chat template
    that is not empty into `folder`.

    On one thread, or as many as OMP_NUM_THREADS says: these models are so small that threads mostly wait for
    each other, on a busy machine for most of the time.
    """
    torch.manual_seed(settings.seed)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    batches = make_batches(tokenizer, examples, examples_per_batch=settings.examples_per_batch)
    model = build_model(
        max_position_embeddings, num_tokens=tokenizer.get_vocab_size(), hidden_size=hidden_size
    )
    optimizers = build_optimizers(
        model, matrix_learning_rate=settings.matrix_learning_rate, learning_rate=settings.learning_rate
    )
    progress("base model", 0, len(batches))
    for step, _ in enumerate(train_model(model, batches, optimizers), start=1):
        progress("base model", step, len(batches))
    # The caller draws the only bar; transformers would draw one more, of one file.
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer)
    if chat_template:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def build_model(
    max_position_embeddings: int, *, num_tokens: int = len(VOCABULARY), hidden_size: int = 128
) -> Qwen3ForCausalLM:
    """A Qwen3 of 0.6 million parameters at a hidden size of 128, randomly initialized from torch's seed."""
    config = Qwen3Config(
        vocab_size=num_tokens,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=False,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        # No pad_token_id, of which transformers makes a row of zeros that it never trains.
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    return model


def make_batches(
    tokenizer: Tokenizer, examples: Iterable[Example], *, examples_per_batch: int
) -> list[Batch]:
    """Cuts `examples` in their order into batches of equal size; the last one may be smaller."""
    rows = [_encode(tokenizer, example) for example in examples]
    starts = range(0, len(rows), examples_per_batch)
    return [_split(rows[start : start + examples_per_batch]) for start in starts]


def build_optimizers(
    model: Qwen3ForCausalLM, *, matrix_learning_rate: float, learning_rate: float
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the rest.

    With AdamW alone the same model needs about three times the steps to learn the column addition.
    """
    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for name, weight in model.named_parameters():
        (matrices if "layers" in name and weight.dim() == 2 else others).append(weight)
    return [
        Muon(matrices, lr=matrix_learning_rate),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def train_model(
    model: Qwen3ForCausalLM, batches: list[Batch], optimizers: list[torch.optim.Optimizer]
) -> Iterator[float]:
    """Trains on each batch once and yields its loss: nats per response token, before the step."""
    schedules = [LambdaLR(optimizer, partial(_schedule, num_steps=len(batches))) for optimizer in optimizers]
    model.train()
    for batch in batches:
        num_targets = sum(int((targets != IGNORED).sum()) for _, targets in batch)
        total = 0.0
        model.zero_grad()
        for tokens, targets in batch:
            logits = model(tokens).logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / num_targets
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        yield total


def _encode(tokenizer: Tokenizer, example: Example) -> Row:
    prompt = tokenizer.encode(example.prompt).ids
    ids, are_learned = list(prompt), [False] * len(prompt)
    before, observed, after = example.response.partition(example.observed or "\0")
    for text, is_learned in ((before, True), (observed, False), (after, True)):
        part = tokenizer.encode(text, add_special_tokens=False).ids
        ids += part
        are_learned += [is_learned] * len(part)
    return [*ids, EOS_ID], [*are_learned, True]


def _split(rows: list[Row]) -> Batch:
    """Micro-batches of similar length: direct answers are not padded to the length of worked ones."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    batch, start = [], 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or len(rows[end][0]) > MAX_STRETCH * len(rows[start][0]):
            batch.append(_pad(rows[start:end]))
            start = end
    return batch


def _pad(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.full((len(rows), longest), PAD_ID)
    targets = torch.full((len(rows), longest), IGNORED)
    for index, (ids, are_learned) in enumerate(rows):
        tokens[index, : len(ids)] = torch.tensor(ids)
        learned = torch.tensor(are_learned)
        targets[index, : len(ids)][learned] = tokens[index, : len(ids)][learned]
    return tokens[:, :-1].contiguous(), targets[:, 1:].contiguous()


def _schedule(step: int, num_steps: int) -> float:
    """The share of the highest learning rate: a linear warm-up, then a cosine down to a tenth."""
    warmup = min(30, num_steps // 10 + 1)
    return min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / num_steps))


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration: five rounds bring singular values to about 0.7-1.2."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized; wide and tall matrices take steps of the same spectral size.

    After Jordan 2024, kellerjordan.github.io/posts/muon. For the weight matrices inside the layers;
    embeddings, head and norms belong to AdamW. In float32 and stacked by shape: torch.optim.Muon works in
    bfloat16 and matrix by matrix, which made a step of the examples' base model three times as long on a CPU.

    Legend: N matrices of equal shape, R rows, C columns.
    """

    def __init__(self, params: list[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                stacks.setdefault(tuple(matrix.shape), []).append(matrix)
            for matrices in stacks.values():
                momenta = [self._momentum(matrix, group["momentum"]) for matrix in matrices]
                updates = torch.stack(momenta)
                num_rows, num_columns = updates.shape[1:]
                scale = group["lr"] * max(1.0, num_rows / num_columns) ** 0.5
                for matrix, update in zip(matrices, orthogonalise(updates), strict=True):
                    matrix.sub_(update, alpha=scale)

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        gradient = matrix.grad
        assert gradient is not None, "every matrix takes part in the loss"
        state = self.state[matrix]
        if "buffer" not in state:
            state["buffer"] = torch.zeros_like(matrix)
        buffer: Tensor = state["buffer"]
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """[N, R, C] -> [N, R, C]: the singular vectors of each matrix, its singular values moved close to one."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
