"""TRL's GRPOTrainer on the data, base model and settings of one of our recipes; prints one line of JSON.

Runs in an environment of its own, which trl_runs.py makes. Of this project it uses the answer extraction
only (plain Python). What is the same as on our side: base model, rows, prompts x samples, learning rate,
Adam's constants, gradient clipping, temperature, longest response, GRPO advantages, token mean over the
batch, one optimizer step per batch, no KL term, and the type of the weights: float32, or bfloat16 where the
settings say so. What differs, because it is TRL:
- synchronous: generate, grade, train in turn, in one process with all threads; so the policy ratio is 1 and
  there is nothing for truncated importance sampling to correct;
- transformers' generate with left padding up to the longest prompt, decoding until the longest response ends;
- right padding up to the longest response in training.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
SETTINGS: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
# Before torch is imported: its thread pools look at the affinity once.
os.sched_setaffinity(0, SETTINGS["cores"])
os.environ |= {
    "OMP_NUM_THREADS": str(SETTINGS["threads"]),
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
sys.path.append(SETTINGS["repository"])

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from grading import is_correct  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

EVALUATION_BATCH = 128


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(is_correct(response, right)) for response, right in zip(completions, answer, strict=True)]


def read_rows(path: str) -> list[dict[str, str]]:
    rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    return [{"prompt": row["prompt"], "answer": str(row["answer"])} for row in rows]


@torch.no_grad()
def greedy_accuracy(model: Any, tokenizer: Any, rows: list[dict[str, str]]) -> float:
    was_training = model.training
    model.eval()
    num_correct = 0
    for start in range(0, len(rows), EVALUATION_BATCH):
        part = rows[start : start + EVALUATION_BATCH]
        inputs = tokenizer(
            [row["prompt"] for row in part], return_tensors="pt", padding=True, padding_side="left"
        )
        made = model.generate(**inputs, do_sample=False, max_new_tokens=SETTINGS["max_new_tokens"])
        texts = tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        num_correct += sum(is_correct(text, row["answer"]) for text, row in zip(texts, part, strict=True))
    model.train(was_training)
    return num_correct / len(rows)


class Watch(TrainerCallback):
    """Times the steps, evaluates between them off the clock, and stops at the wanted accuracy."""

    def __init__(self, model: Any, tokenizer: Any, heldout: list[dict[str, str]]) -> None:
        self.model, self.tokenizer, self.heldout = model, tokenizer, heldout
        self.step_seconds: list[float] = []
        self.evaluation_seconds = 0.0
        self.accuracies: dict[int, float] = {}
        self.curve: list[tuple[float, float]] = []
        """(seconds of steps so far, accuracy) of each evaluation."""
        self.inclusive_seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.evaluate(0)
        self.mark = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step_seconds.append(time.perf_counter() - self.mark)
        print(f"step {state.global_step}: {self.step_seconds[-1]:.3f} s", file=sys.stderr)
        is_due = state.global_step % SETTINGS["evaluate_every"] == 0 or state.global_step == state.max_steps
        if is_due and self.evaluate(state.global_step) >= SETTINGS["target"]:
            control.should_training_stop = True
        self.mark = time.perf_counter()

    def evaluate(self, step: int) -> float:
        began = time.perf_counter()
        accuracy = greedy_accuracy(self.model, self.tokenizer, self.heldout)
        self.accuracies[step] = accuracy
        self.curve.append((sum(self.step_seconds), accuracy))
        self.inclusive_seconds = time.perf_counter() - BEGAN
        self.evaluation_seconds += time.perf_counter() - began
        print(f"step {step}: held-out accuracy {accuracy:.3f}", file=sys.stderr)
        return accuracy


def make_config() -> GRPOConfig:
    sequences = SETTINGS["prompts_per_batch"] * SETTINGS["samples_per_prompt"]
    micro_batch = SETTINGS["sequences_per_micro_batch"]
    return GRPOConfig(
        output_dir=SETTINGS["output_folder"],
        max_steps=SETTINGS["max_steps"],
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=sequences // micro_batch,
        generation_batch_size=sequences,
        num_generations=SETTINGS["samples_per_prompt"],
        max_completion_length=SETTINGS["max_new_tokens"],
        temperature=SETTINGS["temperature"],
        learning_rate=SETTINGS["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=SETTINGS["warmup_steps"],
        adam_beta1=SETTINGS["adam_beta1"],
        adam_beta2=SETTINGS["adam_beta2"],
        adam_epsilon=SETTINGS["adam_epsilon"],
        weight_decay=SETTINGS["weight_decay"],
        max_grad_norm=SETTINGS["clip_grad_norm"],
        num_iterations=1,
        beta=0.0,
        epsilon=SETTINGS["clip_low"],
        epsilon_high=SETTINGS["clip_high"],
        # "group" divides by the group's standard deviation (GRPO), "none" does not (Dr. GRPO).
        scale_rewards={"grpo": "group", "dr_grpo": "none"}[SETTINGS["advantage"]],
        # dapo: mean over all tokens of the batch.
        loss_type={"token_mean": "dapo", "dr_grpo_constant": "dr_grpo"}[SETTINGS["reduction"]],
        shuffle_dataset=SETTINGS["is_shuffled"],
        seed=SETTINGS["seed"],
        use_cpu=True,
        bf16=False,
        # TRL's default saves memory, which is not short here, for a second forward pass.
        gradient_checkpointing=False,
        remove_unused_columns=False,
        use_transformers_continuous_batching=SETTINGS["is_continuous_batching"],
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
    )


def main() -> None:
    torch.set_num_threads(SETTINGS["threads"])
    torch.manual_seed(SETTINGS["seed"])
    tokenizer = AutoTokenizer.from_pretrained(SETTINGS["model"])
    model = AutoModelForCausalLM.from_pretrained(SETTINGS["model"], dtype=getattr(torch, SETTINGS["dtype"]))
    heldout = read_rows(SETTINGS["heldout"])[: SETTINGS["num_heldout"]]
    watch = Watch(model, tokenizer, heldout)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=make_config(),
        train_dataset=Dataset.from_list(read_rows(SETTINGS["train"])),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    trainer.train()
    last = max(watch.accuracies)
    steps = sorted(watch.step_seconds)
    result = {
        "is_reached": watch.accuracies[last] >= SETTINGS["target"],
        "seconds_to_target": sum(watch.step_seconds),
        "inclusive_seconds": watch.inclusive_seconds,
        "evaluation_seconds": watch.evaluation_seconds,
        "steps": last,
        "accuracy": watch.accuracies[last],
        "accuracy_before": watch.accuracies[0],
        "curve": watch.curve,
        "seconds_per_step": sum(steps) / len(steps),
        "seconds_per_step_median": steps[len(steps) // 2],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
