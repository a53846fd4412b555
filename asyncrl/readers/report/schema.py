"""report.json: its fields, their units, and the version of this layout.

A field that nothing measured is null. `SCHEMA_VERSION` rises with every change that a reader could notice;
`asyncrl report --schema` prints the JSON schema.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from asyncrl.journal.conservation import Fate
from asyncrl.observe.metrics.estimates import Difference
from asyncrl.observe.metrics.mishaps import FaultCause
from asyncrl.run.metrics_file import Row
from asyncrl.system.machine import Environment

SCHEMA_VERSION: Final = "5"


class Part(BaseModel):
    """A part of a report. Unknown fields are refused; numbers that JSON cannot hold become null."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")


class HeldOut(Part):
    """Evaluations as their rows in metrics.jsonl: shares with the ends of their 95% intervals (Wilson)."""

    template: str | None
    """Template around the questions, for all versions alike."""
    is_one_template: bool
    """Whether every evaluation was asked under that template."""
    base: Row | None
    last: Row | None
    """Evaluation of the newest version that has one. No choice was made: report this one."""
    best: Row | None
    """Evaluation with the highest greedy accuracy on these same tasks, the first of several: optimistic."""
    num_candidates: int
    """Trained versions that `best` was chosen from."""


class Benchmark(Part):
    name: str
    before: Row | None
    """Row in metrics.jsonl, with the score of each task."""
    after: Row | None
    during: list[Row]
    """Rows of the evaluations during training, in order of steps."""
    changes: dict[str, Difference]
    """greedy, avg or pass -> after - before, paired over tasks, with its 95% interval."""


class OverK(Part):
    """Samples of several models on the same tasks, over k."""

    sampled: list[str]
    """Models that were sampled; the base model first."""
    curves: dict[str, list[Any]]
    """pass, maj or best -> for each of `sampled` mean, low, high and num_tasks, from k = 1; null where it has
    none."""
    contrasts: dict[str, list[Any]]
    """pass, maj or best -> for each of `sampled` its differences to the first one, paired over tasks, and
    the k at which the curves cross; null for the first one."""
    sentences: list[str]


class GivenAnswer(Part):
    text: str | None
    """null where it was not kept; of a long one its beginning and end."""
    extracted: str | None
    """Answer as the verifier read it."""
    outcome: str
    num_tokens: int
    is_cut: bool
    """Whether it ended at the limit of its tokens."""


class AnsweredTask(Part):
    task_id: str
    prompt: str
    """The text; where it is long, its beginning and end."""
    change: str
    before: GivenAnswer
    after: GivenAnswer


class Answers(Part):
    """Answers of the base model and of a trained one to the same tasks."""

    before: str
    """Label of the base model."""
    after: str
    is_greedy: bool
    """Whether they are the most likely answers; else the first samples."""
    num_tasks: int
    """Tasks of the set; `asyncrl eval` keeps the texts of the first ones."""
    counts: dict[str, int]
    """wrong to right, right to wrong, right twice, wrong twice -> tasks with a verdict on both answers."""
    tasks: list[AnsweredTask]
    """The first few of each, in the order in which they were asked."""


class Evaluated(OverK):
    """The last results of `asyncrl eval` on one evaluation set, of models that were asked alike."""

    name: str
    seconds: float
    """Unix time of the newest."""
    models: list[str]
    """Labels; the base model first."""
    results: list[Row]
    """A row for each model, without the scores of tasks."""
    answers: Answers | None
    """Answers to the first tasks; null without a base and a trained model, or where no answers were kept."""


class Model(Part):
    path: str
    commit: str | None
    """Commit of the hub repository."""
    digest: str | None
    """Digest of config.json and the safetensors files (`asyncrl.model.folder.model_digest`)."""
    architecture: str | None
    num_parameters: int | None
    matrix_weights: int | None
    """N of 2N and 6N: weights of matrices that a token meets, with the output layer, without embeddings."""


class Ends(Part):
    """A column of the steps: its first value, its last one, the mean over all."""

    first: float | None
    last: float | None
    mean: float | None


class StepResponses(Part):
    """Graded responses of a step's new groups."""

    step: int
    correct_tokens_mean: float | None
    """Length of those that were right, in tokens."""
    wrong_tokens_mean: float | None
    """Length of those that were wrong; those without an answer are neither."""
    reflection_words_mean: float | None
    """Words of view.reflection_words per response."""
    reflection_words_share: float | None
    """Share of the responses that have one."""
    correct_reflection_words_mean: float | None
    wrong_reflection_words_mean: float | None
    reflection_words_by_word: dict[str, float]
    """Word -> mean per response."""


class Tokens(Part):
    generated: int
    """Sampled for training, each once, also by steps that were trained again. Without evaluations."""
    generated_groups: int
    trained: int
    """Generated tokens in batches of the steps that count."""
    in_loss: int
    """Tokens as often as the losses saw them: a repeated group counts again."""
    prompt: int
    """Prompt tokens, each group's once."""
    fates: list[Fate]
    """trained, taken, queued and "dropped: <reason>"; their tokens sum up to `generated`."""
    unaccounted: int


class Flops(Part):
    """Floating-point operations that the model needs, an addition and a multiplication each as one."""

    generated: float | None
    trained: float | None


class ProcessUse(Part):
    """Resources of one process, over all starts of the run."""

    name: str
    wall_hours: float
    cpu_hours: float | None
    """null where it ran on another machine."""
    num_gpus: int
    gpu_hours: float
    num_restarts: int


class Time(Part):
    wall_seconds: float | None
    """Time of all starts, from the controller's start to its end: also of steps that were trained again."""
    step_seconds: float
    """Time of the steps that count."""
    step_shares: dict[str, float]
    """Part of the trainer's steps -> share of their time; they sum up to 1 when there is a step."""
    cpu_hours: float | None
    gpu_hours: float | None
    trainer_idle_share: float | None
    """Share of its time, in the steady state (without the first tenth of the steps)."""
    rollout_idle_share: float | None
    processes: list[ProcessUse]


class Distribution(Part):
    """Distribution over the steps that measured the column. Quantiles are values that were seen."""

    num_steps: int
    mean: float
    median: float
    p90: float
    p99: float
    max: float


class Start(Part):
    started_seconds: float
    """Unix time."""
    version: int
    """Version of the checkpoint that it began from."""
    wall_seconds: float | None
    differences: list[str]
    """Differences from the environment of the first start."""


class Run(Part):
    name: str
    folder: str
    state: Literal["finished", "running", "stopped", "not begun"]
    steps: int
    """Trained so far."""
    num_steps: int
    """Steps that the recipe asks for."""


class RunReport(Part):
    schema_version: Literal["5"] = SCHEMA_VERSION
    written_seconds: float
    """Unix time."""
    run: Run
    heldout: HeldOut | None
    benchmarks: list[Benchmark]
    evaluations: list[Evaluated]
    samples: OverK | None
    """Samples of the held-out tasks that the run itself took, before and after training."""
    answers: Answers | None
    response_tokens: Ends
    """Lengths of the sampled responses of each step."""
    responses: list[StepResponses]
    """Each step, in order."""
    cut_share: Ends
    reward: Ends
    tokens: Tokens
    flops: Flops
    time: Time
    off_policy: dict[str, Distribution]
    """Staleness in versions, KL in nats per token, shares of tokens."""
    faults: list[FaultCause]
    """Verifier faults by cause, the most frequent first."""
    starts: list[Start]
    model: Model
    data: dict[str, str]
    """data.train and data.heldout -> digest of their content."""
    code: dict[str, str]
    """Python file that the recipe names -> its SHA-256."""
    environment: Environment | None
    """Environment of the last start."""
    recipe: dict[str, Any]
    """Resolved: every key, defaults included."""
