"""Steps of TRL's SFTTrainer on rows of tokens, in this process: an arm of sft_bench.py.

TRL, accelerate and peft are no dependencies: they lie in a folder of their own, beside the locked packages,

    pip install --target FOLDER --no-deps trl accelerate peft

Gradient checkpointing, TRL's default, is off: it would compute each layer twice.
"""

import importlib.util
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from fakes.models import reference_model

from asyncrl.records import Batch

ROWS_AT_ONCE = 8
"""per_device_train_batch_size, at TRL's default."""


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("trl", "accelerate"))


class TrlSteps:
    """One model and one AdamW, trained a batch at a time."""

    def __init__(self, folder: Path, vocabulary: int, *, packs: bool, longest: int) -> None:
        """Without `packs`, micro-batches of ROWS_AT_ONCE rows of like length, padded to the longest. Else
        whole rows are put together into sequences of up to `longest` tokens (best fit decreasing), each a
        micro-batch in which no row sees another."""
        import datasets
        import tokenizers
        import transformers

        datasets.disable_progress_bars()
        transformers.utils.logging.set_verbosity_error()
        words = tokenizers.models.WordLevel({f"t{i}": i for i in range(vocabulary)}, unk_token="t0")
        self._tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(words), pad_token="t0", eos_token="t1"
        )
        self._packs, self._longest = packs, longest
        self._model = reference_model(folder)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0
        )

    def step(self, batch: Batch) -> tuple[float, float]:
        """(loss, CPU seconds), the seconds from the first forward pass on, without making the trainer."""
        import datasets
        import transformers
        import trl

        rows = [_row(each.prompt_tokens, each.response_tokens) for each in batch.sequences]
        found = datasets.Dataset.from_list(sorted(rows, key=lambda row: len(row["input_ids"])))
        parts, rows_at_once = -(-len(found) // ROWS_AT_ONCE), ROWS_AT_ONCE
        if self._packs:
            parts, rows_at_once = len(trl.pack_dataset(found, self._longest, "bfd")), 1
        watch = _watch(transformers.TrainerCallback)
        with tempfile.TemporaryDirectory() as folder:
            trainer = _keeping(trl.SFTTrainer)(
                model=self._model,
                args=trl.SFTConfig(
                    output_dir=folder,
                    max_steps=1,
                    per_device_train_batch_size=rows_at_once,
                    gradient_accumulation_steps=parts,
                    train_sampling_strategy="sequential",
                    packing=self._packs,
                    max_length=self._longest,
                    max_grad_norm=1.0,
                    gradient_checkpointing=False,
                    bf16=False,
                    use_cpu=True,
                    report_to=[],
                    save_strategy="no",
                    disable_tqdm=True,
                    dataloader_pin_memory=False,
                ),
                train_dataset=found,
                processing_class=self._tokenizer,
                callbacks=[watch],
                optimizers=(
                    self._optimizer,
                    torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda _: 1.0),
                ),
            )
            trainer.train()
        return sum(trainer.losses), watch.seconds


def _row(prompt: list[int], response: list[int]) -> dict[str, list[int]]:
    return {"input_ids": [*prompt, *response], "labels": [-100] * len(prompt) + [*response]}


def _watch(kind: type) -> Any:
    class Watch(kind):
        seconds = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.seconds = -time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds += time.process_time()

    return Watch()


def _keeping(kind: type) -> Any:
    class Keeping(kind):
        """Keeps each micro-batch's part of the loss: what Trainer logs is rounded."""

        losses: list[float]

        def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(*arguments, **keywords)
            self.losses = [*getattr(self, "losses", []), loss.item()]
            return loss

    return Keeping
