"""Makes data and a base model for the code example, alone or mixed with additions: a `prepare.target`.

The same small model and plain next-token training as pretrain.py, on the corpus of code_tasks.py, with a
tokenizer that knows words. Not a trainer to build on."""

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from pydantic import ValidationError
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from asyncrl.errors import InputError
from asyncrl.examples.arithmetic import draw_addition, work_addition
from asyncrl.examples.code_tasks import Bugs, draw_code_examples, draw_tasks, row_of_task
from asyncrl.examples.corpus import Example, Mix, draw_examples
from asyncrl.examples.pretrain import IGNORED, Batch, Progress, build_optimizers, save_model, train_model
from asyncrl.examples.rows import draw_problems, problem_of, row_of, write_rows
from asyncrl.examples.tokenizer import (
    BOS,
    BOS_ID,
    CHARACTERS,
    EOS_ID,
    MARKERS,
    PAD_ID,
    SPECIAL,
)
from asyncrl.recipe import Count, Fraction, Positive, PositiveFloat, Section

WORDS = (
    "def f a return sum len x for in if of same square plus minus times list distinct all even odd over under"
).split()
VOCABULARY = (*SPECIAL, *MARKERS, *CHARACTERS, *"{[]<>%", *WORDS)
"""One token per word of the tasks and programs, per digit and per sign; a name may not occur twice."""


class Options(Section):
    """`prepare.options` of a recipe whose target is `prepare`."""

    arithmetic_share: Fraction = 0.0
    """Share of rows and corpus that are additions; above 0 the run mixes two kinds of tasks and two
    verifiers."""
    num_heldout: Positive = 256
    """Rows of heldout.jsonl; none of them is in train.jsonl or in the corpus."""
    inclusive: Fraction = 0.6
    swapped: Fraction = 0.6
    duplicates: Fraction = 0.6
    slip: Fraction = 0.05
    """Chances of the bugs: code_tasks.py:Bugs."""
    num_examples: Positive = 20000
    """Of the corpus; each is seen once."""
    examples_per_batch: Positive = 128
    matrix_learning_rate: PositiveFloat = 0.03
    learning_rate: PositiveFloat = 2e-3
    """As in pretrain.py:Options."""
    seed: Count = 0


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    settings = _parse(options)
    torch.manual_seed(settings.seed)
    torch.set_num_threads(min(2, len(os.sched_getaffinity(0))))
    examples = write_data(folder, settings)
    tokenizer = build_tokenizer()
    batches = make_batches(tokenizer, examples, settings.examples_per_batch)
    model = build_model()
    optimizers = build_optimizers(
        model, matrix_learning_rate=settings.matrix_learning_rate, learning_rate=settings.learning_rate
    )
    progress("base model", 0, len(batches))
    for step, _ in enumerate(train_model(model, batches, optimizers), start=1):
        progress("base model", step, len(batches))
    save_model(model, folder / "model")
    # The files beside it, which tell transformers what tokens are special, are the same; the vocabulary is
    # not.
    tokenizer.save(str(folder / "model" / "tokenizer.json"))


def write_data(folder: Path, settings: Options) -> list[Example]:
    """The two data files; the corpus, which holds none of the held-out tasks."""
    tasks = draw_tasks(count=1800, seed=settings.seed)
    share, random = settings.arithmetic_share, Random(settings.seed)
    num_sums = round(settings.num_heldout * share)
    sums = draw_problems(draw_addition, count=num_sums + round(4000 * share), seed=settings.seed)
    num_code = settings.num_heldout - num_sums
    heldout = [row_of_task(task, seed=settings.seed) for task in tasks[:num_code]] + [
        *map(row_of, sums[:num_sums])
    ]
    train = [row_of_task(task, seed=settings.seed) for task in tasks[num_code:]] + [
        *map(row_of, sums[num_sums:])
    ]
    for name, rows in (("train", train), ("heldout", heldout)):
        random.shuffle(rows)
        write_rows(folder / f"{name}.jsonl", rows)
    bugs = Bugs(settings.inclusive, settings.swapped, settings.duplicates, settings.slip)
    code = draw_code_examples(
        bugs=bugs, count=settings.num_examples, seed=settings.seed + 1, tasks=tasks[num_code:]
    )
    worked = draw_examples(
        draw_addition,
        work_addition,
        mix=Mix(),
        count=round(settings.num_examples * share),
        seed=settings.seed + 1,
        without={problem_of(terms) for terms in sums[:num_sums]},
    )
    examples = [*islice(code, round(settings.num_examples * (1 - share))), *worked]
    random.shuffle(examples)
    return examples


def build_tokenizer() -> Tokenizer:
    """Words, digits and signs are tokens; <bos> stands in front of what is encoded."""
    tokenizer = Tokenizer(WordLevel({token: index for index, token in enumerate(VOCABULARY)}))
    tokenizer.pre_tokenizer = Split(Regex(r"<think>|</think>|\\boxed\{|[a-z]+|[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    return tokenizer


def build_model() -> Qwen3ForCausalLM:
    """A Qwen3 of 0.6 million parameters, randomly initialised from torch's seed."""
    config = Qwen3Config(
        vocab_size=len(VOCABULARY), hidden_size=128, intermediate_size=384, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
        tie_word_embeddings=False, bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    return model


def make_batches(tokenizer: Tokenizer, examples: Iterable[Example], examples_per_batch: int) -> list[Batch]:
    """Batches in the examples' order, each one or two micro-batches: the shorter and the longer rows."""
    rows = []
    for example in examples:
        prompt = tokenizer.encode(example.prompt).ids
        response = tokenizer.encode(example.response, add_special_tokens=False).ids
        rows.append(([*prompt, *response, EOS_ID], len(prompt)))
    batches = []
    for start in range(0, len(rows), examples_per_batch):
        batch = sorted(rows[start : start + examples_per_batch], key=lambda row: len(row[0]))
        halves = (batch[: len(batch) // 2], batch[len(batch) // 2 :])
        batches.append([_pad(half) for half in halves if half])
    return batches


def _pad(rows: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    tokens = torch.full((len(rows), longest), PAD_ID)
    targets = torch.full((len(rows), longest), IGNORED)
    for index, (ids, prompt_length) in enumerate(rows):
        tokens[index, : len(ids)] = torch.tensor(ids)
        targets[index, prompt_length : len(ids)] = tokens[index, prompt_length : len(ids)]
    return tokens[:, :-1].contiguous(), targets[:, 1:].contiguous()


def _parse(options: dict[str, Any]) -> Options:
    try:
        return Options.model_validate(options)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(map(str, details["loc"]))
        known = ", ".join(Options.model_fields)
        raise InputError(f"prepare.options.{key}: {details['msg']}. Options: {known}.") from None
