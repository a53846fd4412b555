"""A benchmark ready to be asked: its tasks as tokens, how responses are sampled, read and graded.

Prompts are rendered once, with one tokenizer: base model and checkpoints answer the very same tokens.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from asyncrl.data.benchmarks import PLAIN, Benchmark
from asyncrl.data.prompts import Prompt, PromptTemplate, template_title, told_title
from asyncrl.data.rows import grader_of, rows_of
from asyncrl.errors import InputError
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.kept_answers import Slot
from asyncrl.evaluation.result import Result
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.terminal.stage import LateStage
from asyncrl.recipe import Evaluation, HeldOutSet, Recipe, Rollout, Source
from asyncrl.recipe import Prompt as PromptSection
from asyncrl.records import PolicyVersion, SamplingParams, Task, VerifierSpec
from asyncrl.tasks.source_choice import first_tasks
from asyncrl.tasks.task_list import TaskMaker, template_of, title_of, use_of
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.kit import TurnKit, read_kit

SPLIT = "test"
HELDOUT = "held-out"


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    name: str
    source: str
    """Place of its rows, for people."""
    template: str
    """Template around its questions: `template_title`, or the benchmark's own."""
    tasks: list[Task]
    num_left_out: int
    """Rows that were not asked: repeated, without an answer that can be parsed, or too long."""
    codec: TextCodec
    sampling: SamplingParams
    num_sampled: int
    """Samples per task; 0 where only the most likely answer is asked for."""
    is_greedy: bool
    """The most likely answer to each task is asked for. Without it there are only samples."""
    is_completion: bool = False
    kit: TurnKit | None = None
    """Answers the turns; None where a response is one turn."""
    paths: tuple[str, ...] = ()
    """Files, folders or hub ids of a benchmark's rows."""
    is_own: bool = False
    """It is a set of evaluation.sets."""
    every_steps: int = 0
    """Steps between evaluations during training; 0: only before and after."""
    verifier: str | None = None
    """The verifier that grades in place of those of rows."""

    def is_due(self, version: PolicyVersion) -> bool:
        """Whether `version` is one to evaluate during training."""
        return self.every_steps > 0 and version > 0 and version % self.every_steps == 0

    @property
    def num_responses(self) -> int:
        return len(self.tasks) * (self.is_greedy + self.num_sampled)

    def slots(self, evaluator: Evaluator) -> list[Slot]:
        """All responses that `measure` asks the model of `evaluator` for, or finds kept."""
        mine = self.evaluator(evaluator)
        ways = ((1, True), (self.num_sampled, False)) if self.is_greedy else ((self.num_sampled, False),)
        return [
            slot
            for num_samples, is_greedy in ways
            for slot in mine.slots(self.tasks, num_samples=num_samples, is_greedy=is_greedy)
        ]

    def settings_digest(self, slots: Sequence[Slot]) -> str:
        """Digest of what is asked and how it is graded: results of several models with the same one may be
        compared, whatever their number of samples. `slots` are those of any model."""
        graders = {slot.task.task_id: None if slot.grader is None else slot.grader.hex() for slot in slots}
        asked = [[task.task_id, list(task.prompt_tokens), graders[task.task_id]] for task in self.tasks]
        ends = [list(self.sampling.stop_token_ids), list(self.codec.stop.strings)]
        settings = {**self.describe(), "temperature": self.sampling.temperature}
        text = json.dumps([settings, ends, asked], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    async def measure(self, evaluator: Evaluator) -> Result:
        """Result of the model of `evaluator`. Raises EvaluationFailed."""
        return await evaluator.evaluate(self.tasks, is_greedy=self.is_greedy, num_samples=self.num_sampled)

    def evaluator(self, evaluator: Evaluator, on_graded: Callable[[int], None] | None = None) -> Evaluator:
        """`evaluator` with this set's tokens, limits and stop strings, and a count of tokens of its own."""
        return dataclasses.replace(
            evaluator,
            codec=self.codec,
            sampling=self.sampling,
            is_completion=self.is_completion,
            conversations=self._conversations(evaluator),
            num_streamed=0,
            on_graded=on_graded or evaluator.on_graded,
        )

    def _conversations(self, evaluator: Evaluator) -> Conversations | None:
        """Those of `evaluator` in this set's tokens."""
        if evaluator.conversations is None or self.kit is None:
            return None
        return evaluator.conversations.by(self.kit.codec, self.kit.calls)

    def describe(self) -> dict[str, Any]:
        """Fields that a result has of its evaluation set."""
        return {
            "benchmark": self.name,
            "source": self.source,
            "template": self.template,
            "num_left_out": self.num_left_out,
            "temperature": self.sampling.temperature if self.num_sampled else 0.0,
            "max_new_tokens": self.sampling.max_new_tokens,
            **self.sampling.settings(),
            **({} if self.verifier is None else {"verifier": self.verifier}),
        }


def read_evaluation_set(
    benchmark: Benchmark,
    recipe: Recipe,
    model_folder: Path,
    verifiers: VerifierCache,
    context_tokens: int,
    *,
    now: datetime,
) -> EvaluationSet:
    """The benchmark's tasks, by default all, as the recipe asks and reads them.

    Fetches rows that are of a hub. Raises InputError.
    """
    _check_completion(benchmark, recipe)
    settings = benchmark.settings
    kit = read_kit(recipe, model_folder, rollout=_rollout(benchmark, recipe), now=now)
    codec = kit.codec
    template, title = _template(benchmark, recipe, codec)
    lenient = recipe.data.model_copy(update={"broken_rows": "leave_out", "long_prompts": "leave_out"})
    key = f"benchmark {benchmark.name}" if settings is None else f"evaluation.sets {benchmark.name}"
    maker = TaskMaker(key, lenient, codec, verifiers, context_tokens, template, stage=LateStage)
    verifying, grader, sources = recipe.verifying, _grader(benchmark, recipe), benchmark.sources()
    if benchmark.verifier is not None and benchmark.verifier != verifying.default:
        verifying = verifying.model_copy(update={"default": benchmark.verifier, "options": {}})
    rows = rows_of(
        *(sources, key, verifying, use_of(recipe, verifiers)),
        split=SPLIT,
        grader=grader,
    )
    tasks = maker.make(rows, sources)
    limit = recipe.evaluation.benchmark_tasks if settings is None else settings.num_tasks
    limit_key = "evaluation.benchmark_tasks" if settings is None else f"num_tasks of {key}"
    # One sample alone says less than the most likely answer.
    is_sampled = benchmark.num_samples > 1 or benchmark.is_sampled
    return EvaluationSet(
        name=benchmark.name,
        source=" + ".join(map(_place, sources)),
        template=title,
        tasks=tasks[:] if limit is None else first_tasks(maker, tasks, sources, limit, limit_key),
        num_left_out=maker.findings.left_out.total(),
        codec=codec,
        sampling=evaluation_sampling(
            *(recipe.evaluation, codec, benchmark.temperature, benchmark.max_new_tokens), settings
        ),
        num_sampled=benchmark.num_samples if is_sampled else 0,
        is_greedy=not is_sampled,
        is_completion=benchmark.is_completion,
        kit=kit,
        paths=tuple(source.path for source in sources if source.path is not None),
        is_own=settings is not None,
        every_steps=0 if settings is None else settings.every_steps,
        verifier=None if grader is None else grader.name,
    )


def _rollout(benchmark: Benchmark, recipe: Recipe) -> Rollout:
    """The recipe's, with what ends this benchmark's responses."""
    rollout = recipe.evaluation.rollout_of(recipe.rollout)
    if benchmark.stop:
        rollout = rollout.model_copy(update={"stop": list(benchmark.stop), "include_stop": False})
    return rollout if benchmark.settings is None else benchmark.settings.rollout_of(rollout)


def _grader(benchmark: Benchmark, recipe: Recipe) -> VerifierSpec | None:
    """The verifier that grades in place of the rows' and the benchmark's."""
    own = None if benchmark.settings is None else grader_of(benchmark.settings)
    return own or (grader_of(recipe.evaluation) if benchmark.verifier is None else None)


def evaluation_sampling(
    section: Evaluation,
    codec: TextCodec,
    temperature: float,
    max_new_tokens: int,
    settings: HeldOutSet | None = None,
) -> SamplingParams:
    """Sampling of an evaluation that has its own temperature and limit, and whatever else its set in
    evaluation.sets states. Greedy answers use the repetition penalty alone."""
    return SamplingParams(temperature, max_new_tokens, codec.stop_token_ids, **section.sampling_of(settings))


def _check_completion(benchmark: Benchmark, recipe: Recipe) -> None:
    """Raises InputError where prompt and response would be graded as one text, but the response is none."""
    if benchmark.is_completion and (recipe.agent.is_on() or recipe.turns.is_on()):
        key = "agent" if recipe.agent.is_on() else "turns"
        raise InputError(
            f"The benchmark {benchmark.name} is a text that the model continues, but the recipe's section "
            f"{key} makes conversations. Name a benchmark that asks, such as humaneval, or evaluate a model "
            f"folder without the recipe."
        )


def heldout_set(recipe: Recipe, tasks: list[Task], kit: TurnKit) -> EvaluationSet:
    """data.heldout as it is evaluated before and after training."""
    section, codec = recipe.evaluation, kit.codec
    limit = section.rollout_of(recipe.rollout).max_new_tokens
    sampling = evaluation_sampling(section, codec, section.temperature, limit)
    return EvaluationSet(
        *(HELDOUT, "data.heldout", title_of(recipe), tasks, 0, codec, sampling, section.samples_per_task),
        is_greedy=True,
        kit=kit,
    )


def _place(source: Source) -> str:
    if source.path is None:
        return f"gym {source.gym}, {source.size} tasks from seed {source.seed}"
    at = f"@{source.revision}" if source.revision is not None else ""
    config = source.config if isinstance(source.config, str) else None
    return " ".join(part for part in (f"{source.path}{at}", config, source.split) if part)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row's question in the words of the benchmark, as one message where the model has a chat template."""

    instruction: PromptTemplate
    is_chat: bool

    def __call__(self, prompt: Prompt) -> Prompt:
        text = self.instruction(prompt)
        return [{"role": "user", "content": text}] if self.is_chat else text


def _template(
    benchmark: Benchmark, recipe: Recipe, codec: TextCodec
) -> tuple[Callable[[Prompt], Prompt] | None, str]:
    """The function that makes prompts of questions, and its title: the recipe's own, else the benchmark's."""
    if benchmark.is_completion:
        return PromptTemplate(PLAIN), benchmark.instruction_name
    settings = benchmark.settings
    if settings is not None and settings.template is not None:
        prompt = (recipe.prompt or PromptSection()).model_copy(update={"template": settings.template})
        recipe = recipe.model_copy(update={"prompt": prompt})
    if recipe.has_template():
        return template_of(recipe), title_of(recipe)
    if benchmark.is_asked_as_rows:
        return None, told_title(template_title(None), recipe.chat_template_kwargs())
    way = "chat" if codec.has_chat_template else "text"
    asked = _Asked(PromptTemplate(benchmark.instruction), codec.has_chat_template)
    told = recipe.chat_template_kwargs() if codec.has_chat_template else {}
    return asked, told_title(f"{benchmark.instruction_name}, as {way}", told)
