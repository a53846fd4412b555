"""Sections of a sized recipe: each key with its value and the reason, or what was assumed."""

from dataclasses import dataclass

from asyncrl.launch.first_recipe.commented import Entry, Sections
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

    def sections(self) -> Sections:
        return {
            "": [
                Entry("name", self.wish.name),
                Entry("seed", 0),
                Entry("run_folder", "runs/{name}", "relative to this file; journal, checkpoints, report"),
            ],
            "model": self._model(),
            "data": self._data(),
            "prompt": self._prompt(),
            "verifying": self._verifying(),
            "rollout": self._rollout(),
            "turns": self._turns(),
            "serving": self._serving(),
            "algorithm": _algorithm(),
            "trainer": self._trainer(),
            "evaluation": self._evaluation(),
            "placement": [
                Entry("device", "gpu", "`asyncrl check` prints which process gets which"),
                Entry(
                    "colocated",
                    self.division.settings()["placement.colocated"],
                    "servers sleep while the trainer steps: apart, they do not fit on these GPUs"
                    if self.division.is_colocated
                    else "",
                ),
            ],
            "cluster": self._cluster(),
        }

    def _model(self) -> list[Entry]:
        billions = num_parameters(self.shape) / 1e9
        limit = self.shape.max_positions
        inside = f"prompt{', observations' if self.wish.goal == 'tools' else ''} and response"
        return [
            Entry("path", self.wish.model, f"{billions:.1f} billion parameters, {self.shape.architecture}"),
            Entry(
                "context_tokens",
                self.context_tokens,
                f"{inside}; the model was made for {limit:,}",
            ),
            Entry("dtype", "bfloat16", "weights and activations; Adam keeps float32 master weights"),
        ]

    def _data(self) -> list[Entry]:
        rows = self.rows
        heldout = [] if rows.heldout is None else [Entry("heldout", rows.heldout, "never trained on")]
        return [
            Entry("train", rows.train, rows.remark),
            *heldout,
            Entry("broken_rows", "leave_out", "rows without a readable answer are counted and left out"),
            Entry("max_prompt_tokens", PROMPT_TOKENS, "assumed; template included"),
            Entry("long_prompts", "leave_out"),
        ]

    def _prompt(self) -> list[Entry]:
        if not self.rows.has_text:
            return []
        why = (
            "the model answers chat messages, by its own template; base models take plain"
            if self.wish.is_chat
            else "a base model continues text; models that chat take chat"
        )
        suffix = BLOCK if self._has_programs() else BOXED
        if self.wish.goal == "tools" and not self.wish.is_chat:
            # No chat template tells of the tool.
            suffix = TAGGED + suffix
        return [
            Entry(
                "template", "chat" if self.wish.is_chat else "plain", f"assumed by the model's name: {why}"
            ),
            Entry("suffix", suffix, "tells where the answer goes, as the verifier reads it"),
        ]

    def _has_programs(self) -> bool:
        return self.rows.is_code or self.wish.goal == "code"

    def _verifying(self) -> list[Entry]:
        if self._has_programs():
            return [
                Entry("default", "code", "runs programs in the sandbox: `asyncrl sandbox doctor` tries it"),
                Entry("num_workers", 8, "programs at once; raise it where grading is the bottleneck"),
                Entry("timeout_seconds", 20.0, "of all tests of a response"),
            ]
        return [
            Entry("default", "math", "for rows that name no verifier"),
            Entry("num_workers", 4, "symbolic comparison is work of the CPU"),
            Entry("timeout_seconds", 5.0),
        ]

    def _rollout(self) -> list[Entry]:
        groups, samples = _batch(self.wish.num_gpus)
        return [
            Entry("groups_per_batch", groups, f"assumed for {self.wish.num_gpus} GPU(s); tasks of a step"),
            Entry("samples_per_group", samples, "responses to each; more for data that are rarely solved"),
            Entry("max_staleness", 2, "0 is synchronous; more for long responses of unlike lengths"),
            Entry("temperature", 1.0, "the distribution that is trained"),
            Entry(
                "max_new_tokens",
                self.response_tokens,
                "assumed; `cut_share` in metrics says how many it cuts off",
            ),
            Entry("stream_interval_tokens", 64, "a crash loses fewer than these of a response"),
        ]

    def _turns(self) -> list[Entry]:
        if self.wish.goal != "tools":
            return []
        form = "auto" if self.wish.is_chat else "tags"
        return [
            Entry("tools", ["python"], "in the sandbox; calculator, ./file.py:function: docs/turns.md"),
            Entry("call_format", form, "as the chat template writes calls" if form == "auto" else ""),
            Entry("max_turns", TURNS),
            Entry("max_observed_tokens", OBSERVED_TOKENS, "of one answer of a tool; the middle is cut out"),
            Entry("timeout_seconds", 15.0),
        ]

    def _serving(self) -> list[Entry]:
        division, cache = self.division, self.cache_tokens
        sized = division.settings()
        ranks = division.server_ranks
        weights = 2 * num_parameters(self.shape) / ranks / 1e9
        size = Entry("max_total_tokens", cache, "what the trainer leaves free, as asyncrl plan counts")
        return [
            Entry("num_servers", sized["serving.num_servers"], self._why_split()),
            Entry(
                "tensor_parallel_size",
                sized["serving.tensor_parallel_size"],
                f"GPUs of a server: {weights:.1f} GB of weights on each"
                + ("" if cache else f", room for about {self.free_tokens:,} tokens"),
            ),
            *([size] if cache else []),
            Entry("max_running_requests", 256, "decoded at once per server"),
            Entry("start_timeout_seconds", 1800.0, "the first start compiles kernels"),
            Entry(
                "weight_transport",
                self.transport,
                "from memory to all servers at once: a disk would be read for longer than a step trains"
                if self.transport == "distributed"
                else "servers read the new version from the run folder",
            ),
        ]

    def _why_split(self) -> str:
        division = self.division
        if division.is_colocated:
            return "on the trainer's GPUs"
        servers = division.num_servers * division.server_ranks
        return (
            f"{servers} of {self.wish.num_gpus} GPUs, so that both sides wait least by the estimate; "
            f"asyncrl plan --gpus {self.wish.num_gpus} simulates others"
        )

    def _trainer(self) -> list[Entry]:
        division, packing = self.division, self.packing
        sized = division.settings()
        copies = division.copies()
        is_small = num_parameters(self.shape) < SMALL_PARAMETERS
        tensor, experts = division.tensor > 1, self.shape.num_experts is not None
        widest = f"{copies} data-parallel cop{'y' if copies == 1 else 'ies'} of the model"
        return [
            Entry("num_steps", 200, "assumed"),
            Entry("num_processes", sized["trainer.num_processes"], f"a GPU each: {widest}"),
            Entry(
                "parallel.tensor",
                sized["trainer.parallel.tensor"],
                "ranks that share every matrix" if tensor else "",
            ),
            Entry("parallel.sequence_parallel", sized["trainer.parallel.sequence_parallel"]),
            Entry("parallel.pipeline", sized["trainer.parallel.pipeline"]),
            *(
                [Entry("parallel.expert", sized["trainer.parallel.expert"], "ranks that share the experts")]
                if experts
                else []
            ),
            Entry(
                "parallel.distributed_optimizer",
                sized["trainer.parallel.distributed_optimizer"],
                "copies share Adam's states",
            ),
            Entry(
                "recompute",
                packing.recompute,
                "activations do not fit otherwise; costs a third more of computing"
                if packing.recompute == "full"
                else "all activations fit",
            ),
            Entry("tokens_per_micro_batch", packing.tokens, "lower it first if memory runs out"),
            Entry(
                "learning_rate",
                SMALL_RATE if is_small else USUAL_RATE,
                "below a billion parameters more than the usual 1e-6"
                if is_small
                else "of most published runs",
            ),
            Entry("warmup_steps", 10),
            Entry("checkpoint_every_steps", 20),
            Entry("stop_timeout_seconds", 300.0, "after Ctrl-C, for the current step and its checkpoint"),
        ]

    def _evaluation(self) -> list[Entry]:
        if self.rows.heldout is None:
            return [
                Entry(
                    "every_steps",
                    0,
                    "the data have no rows to hold out: name some in data.heldout, or evaluation.benchmarks",
                )
            ]
        return [
            Entry("every_steps", 20, "greedy, on held-out rows"),
            Entry("num_tasks", 256),
            Entry("samples_per_task", 4, "avg@4 and pass@4 before and after training"),
        ]

    def _cluster(self) -> list[Entry]:
        if self.division.num_gpus() <= GPUS_PER_MACHINE:
            return []
        return [
            Entry(
                "backend",
                "ray",
                f"assumed: machines of {GPUS_PER_MACHINE} GPUs; local for a single one: docs/gpus.md#ray",
            ),
            Entry("address", "auto", "the cluster that RAY_ADDRESS names, or that runs here"),
            Entry("shared_disk", True, "assumed: run folder and model are at the same path everywhere"),
        ]


def _batch(num_gpus: int) -> tuple[int, int]:
    """(groups, samples)."""
    if num_gpus <= GPUS_PER_MACHINE:
        return 32, 8
    return (64, 8) if num_gpus <= 4 * GPUS_PER_MACHINE else (128, 16)


def _algorithm() -> list[Entry]:
    return [
        Entry("advantage", "grpo", "`asyncrl algorithms` prints all terms of the loss"),
        Entry("importance_weight", "truncated", "corrects for the policy that sampled a token"),
    ]
