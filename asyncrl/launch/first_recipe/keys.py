"""Keys of a sized recipe, each with its value and the reason, or what was assumed."""

from collections.abc import Iterator
from dataclasses import dataclass

from asyncrl.launch.first_recipe.commented import Row
from asyncrl.launch.first_recipe.rows import Rows
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.division import GPUS_PER_MACHINE, Division
from asyncrl.readers.planning.estimated import Device

PROMPT_TOKENS = 1024
TURNS, OBSERVED_TOKENS = 8, 512
BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
BLOCK = "\n\nThink first, then answer with one ```python block."
TAGGED = "\n\nYou may run Python: <python>print(1 + 1)</python>. What it prints follows in <output></output>."
USUAL_RATE, SMALL_RATE = 1e-6, 2e-6
SMALL_PARAMETERS = 10**9


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of a user."""

    model: str
    num_gpus: int
    gpu: Device
    goal: str
    """math, code or tools."""
    is_chat: bool
    """The model answers chat messages; a base model continues text."""
    name: str
    command: str
    """As it was typed, for the recipe's first lines."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The part of the trainer's memory that can be chosen beside the layout."""

    tokens: int
    """trainer.tokens_per_micro_batch."""
    recompute: str


@dataclass(frozen=True, slots=True)
class Draft:
    """All that decides the keys."""

    wish: Wish
    shape: ModelShape
    rows: Rows
    division: Division
    packing: Packing
    response_tokens: int
    context_tokens: int
    free_tokens: int
    """Room for the cache of a server that has its GPUs alone."""
    cache_tokens: int | None = None
    """serving.max_total_tokens; None where the engine decides."""
    transport: str = "disk"

    def keys(self) -> Iterator[Row]:
        """All keys of the recipe, section by section."""
        yield "name", self.wish.name, ""
        yield "seed", 0, ""
        yield "run_folder", "runs/{name}", "relative to this file; journal, checkpoints, report"
        yield from self._of_tasks()
        yield from self._of_responses()
        yield from self._of_servers()
        yield "algorithm.advantage", "grpo", "`asyncrl algorithms` prints all terms of the loss"
        yield "algorithm.importance_weight", "truncated", "corrects for the policy that sampled a token"
        yield from self._of_trainer()
        yield from self._of_evaluation()
        division = self.division
        yield "placement.device", "gpu", "`asyncrl check` prints which process gets which"
        why = "servers sleep while the trainer steps: apart, they do not fit on these GPUs"
        yield "placement.colocated", division.is_colocated, why if division.is_colocated else ""
        if division.num_gpus() > GPUS_PER_MACHINE:
            why = f"assumed: machines of {GPUS_PER_MACHINE} GPUs; local for a single one: docs/gpus.md#ray"
            yield "cluster.backend", "ray", why
            yield "cluster.address", "auto", "the cluster that RAY_ADDRESS names, or that runs here"
            why = "assumed: run folder and model are at the same path everywhere"
            yield "cluster.shared_disk", True, why

    def _of_tasks(self) -> Iterator[Row]:
        wish, shape, rows = self.wish, self.shape, self.rows
        size = f"{num_parameters(shape) / 1e9:.1f} billion parameters, {shape.architecture}"
        yield "model.path", wish.model, size
        inside = f"prompt{', observations' if wish.goal == 'tools' else ''} and response"
        limit = f"{inside}; the model was made for {shape.max_positions:,}"
        yield "model.context_tokens", self.context_tokens, limit
        yield "model.dtype", "bfloat16", "weights and activations; Adam keeps float32 master weights"
        yield "data.train", rows.train, rows.remark
        if rows.heldout is not None:
            yield "data.heldout", rows.heldout, "never trained on"
        yield "data.broken_rows", "leave_out", "rows without a readable answer are counted and left out"
        yield "data.max_prompt_tokens", PROMPT_TOKENS, "assumed; template included"
        yield "data.long_prompts", "leave_out", ""
        has_programs = rows.is_code or wish.goal == "code"
        if rows.has_text:
            why = "a base model continues text; models that chat take chat"
            if wish.is_chat:
                why = "the model answers chat messages, by its own template; base models take plain"
            template = "chat" if wish.is_chat else "plain"
            yield "prompt.template", template, f"assumed by the model's name: {why}"
            # Without a chat template nothing else tells of the tool.
            tagged = TAGGED if wish.goal == "tools" and not wish.is_chat else ""
            suffix = tagged + (BLOCK if has_programs else BOXED)
            yield "prompt.suffix", suffix, "tells where the answer goes, as the verifier reads it"
        if has_programs:
            why = "runs programs in the sandbox: `asyncrl sandbox doctor` tries it"
            yield "verifying.default", "code", why
            yield "verifying.num_workers", 8, "programs at once; raise it where grading is the bottleneck"
            yield "verifying.timeout_seconds", 20.0, "of all tests of a response"
        else:
            yield "verifying.default", "math", "for rows that name no verifier"
            yield "verifying.num_workers", 4, "symbolic comparison is work of the CPU"
            yield "verifying.timeout_seconds", 5.0, ""

    def _of_responses(self) -> Iterator[Row]:
        num_gpus = self.wish.num_gpus
        groups, samples = (128, 16) if num_gpus > 4 * GPUS_PER_MACHINE else (64, 8)
        if num_gpus <= GPUS_PER_MACHINE:
            groups, samples = 32, 8
        yield "rollout.groups_per_batch", groups, f"assumed for {num_gpus} GPU(s); tasks of a step"
        why = "responses to each; more for data that are rarely solved"
        yield "rollout.samples_per_group", samples, why
        yield "rollout.max_staleness", 2, "0 is synchronous; more for long responses of unlike lengths"
        yield "rollout.temperature", 1.0, "the distribution that is trained"
        why = "assumed; `cut_share` in metrics says how many it cuts off"
        yield "rollout.max_new_tokens", self.response_tokens, why
        yield "rollout.stream_interval_tokens", 64, "a crash loses fewer than these of a response"
        if self.wish.goal == "tools":
            yield "turns.tools", ["python"], "in the sandbox; calculator, ./file.py:function: docs/turns.md"
            if self.wish.is_chat:
                yield "turns.call_format", "auto", "as the chat template writes calls"
            else:
                yield "turns.call_format", "tags", ""
            yield "turns.max_turns", TURNS, ""
            why = "of one answer of a tool; the middle is cut out"
            yield "turns.max_observed_tokens", OBSERVED_TOKENS, why
            yield "turns.timeout_seconds", 15.0, ""

    def _of_servers(self) -> Iterator[Row]:
        division, num_gpus = self.division, self.wish.num_gpus
        why = "on the trainer's GPUs"
        if not division.is_colocated:
            why = (
                f"{division.num_servers * division.server_ranks} of {num_gpus} GPUs, so that both sides wait "
                f"least by the estimate; asyncrl plan --gpus {num_gpus} simulates others"
            )
        yield "serving.num_servers", division.num_servers, why
        weights = 2 * num_parameters(self.shape) / division.server_ranks / 1e9
        room = "" if self.cache_tokens else f", room for about {self.free_tokens:,} tokens"
        why = f"GPUs of a server: {weights:.1f} GB of weights on each{room}"
        yield "serving.tensor_parallel_size", division.server_ranks, why
        if self.cache_tokens:
            why = "what the trainer leaves free, as asyncrl plan counts"
            yield "serving.max_total_tokens", self.cache_tokens, why
        yield "serving.max_running_requests", 256, "decoded at once per server"
        yield "serving.start_timeout_seconds", 1800.0, "the first start compiles kernels"
        why = "servers read the new version from the run folder"
        if self.transport == "distributed":
            why = "from memory to all servers at once: a disk would be read for longer than a step trains"
        yield "serving.weight_transport", self.transport, why

    def _of_trainer(self) -> Iterator[Row]:
        division, packing = self.division, self.packing
        sized = {key: value for key, value in division.settings().items() if key.startswith("trainer.")}
        copies = division.copies()
        reasons = {
            "trainer.num_processes": f"a GPU each: {copies} data-parallel cop{'y' if copies == 1 else 'ies'} "
            "of the model",
            "trainer.parallel.tensor": "ranks that share every matrix" if division.tensor > 1 else "",
            "trainer.parallel.expert": "ranks that share the experts",
            "trainer.parallel.distributed_optimizer": "copies share Adam's states",
        }
        yield "trainer.num_steps", 200, "assumed"
        for key, value in sized.items():
            if key != "trainer.parallel.expert" or self.shape.num_experts is not None:
                yield key, value, reasons.get(key, "")
        why = "all activations fit"
        if packing.recompute == "full":
            why = "activations do not fit otherwise; costs a third more of computing"
        yield "trainer.recompute", packing.recompute, why
        yield "trainer.tokens_per_micro_batch", packing.tokens, "lower it first if memory runs out"
        if num_parameters(self.shape) < SMALL_PARAMETERS:
            why = "below a billion parameters more than the usual 1e-6"
            yield "trainer.learning_rate", SMALL_RATE, why
        else:
            yield "trainer.learning_rate", USUAL_RATE, "of most published runs"
        yield "trainer.warmup_steps", 10, ""
        yield "trainer.checkpoint_every_steps", 20, ""
        why = "after Ctrl-C, for the current step and its checkpoint"
        yield "trainer.stop_timeout_seconds", 300.0, why

    def _of_evaluation(self) -> Iterator[Row]:
        if self.rows.heldout is None:
            why = "the data have no rows to hold out: name some in data.heldout, or evaluation.benchmarks"
            yield "evaluation.every_steps", 0, why
            return
        yield "evaluation.every_steps", 20, "greedy, on held-out rows"
        yield "evaluation.num_tasks", 256, ""
        yield "evaluation.samples_per_task", 4, "avg@4 and pass@4 before and after training"
