"""Responses that `asyncrl select` generates where the journal has too few.

They come from servers of one model, sampled as rollouts are, and are kept as `asyncrl eval` keeps its
answers: a second call asks only for what is missing.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from asyncrl.controller.inputs import Inputs
from asyncrl.errors import InputError
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.kept_answers import Slot
from asyncrl.evaluation.result import GradedResponse
from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.launch.engine_only import asking, serve_folder, serve_nothing
from asyncrl.launch.evaluated_models import (
    BASE,
    LAST,
    EvaluatedModel,
    answers_file,
    find_models,
    keep_answers,
    usable_versions,
)
from asyncrl.launch.preflight import read_training_inputs
from asyncrl.launch.servers import check_ports
from asyncrl.observe.terminal.stage import stage
from asyncrl.readers.audit.grading import AuditTasks
from asyncrl.readers.selection.candidate import Candidate, GeneratedTokens
from asyncrl.recipe import Recipe
from asyncrl.records import Finish, PolicyVersion, Task
from asyncrl.tasks.order import TaskTable

RESPONSES_AT_ONCE = 4096
"""Asked together: they fill the servers many times, and each is kept as it comes."""


def check_generation(recipe: Recipe) -> None:
    """Raises InputError for a recipe whose responses are more than one turn of one server's model."""
    if recipe.turns.is_on() or recipe.agent.is_on():
        key = "turns" if recipe.turns.is_on() else "agent"
        raise InputError(
            f"The recipe has the section {key}, and asyncrl select generates responses of one turn alone. "
            f"Leave -n and --compacted out to select among those of the journal."
        )
    if recipe.serving.servers:
        raise InputError(
            "serving.servers names servers of others, whose weights are not known: responses could not be "
            "kept. Give serving.servers=[] to generate on servers of this command."
        )


@dataclass(frozen=True, slots=True)
class Answers:
    """A model and the rows that it may be asked."""

    inputs: Inputs
    model: EvaluatedModel

    @classmethod
    def read(cls, recipe: Recipe, at: str | None, *, has_journal: bool) -> "Answers":
        """`recipe` has everything on this machine. Raises InputError."""
        has_model = has_journal and usable_versions(recipe.folder())
        (model,) = find_models(recipe, [at or (LAST if has_model else BASE)], [])
        there = {"path": str(model.folder), "revision": None}
        asked = recipe.model_copy(update={"model": recipe.model.model_copy(update=there)})
        check_ports(asked)
        inputs = read_training_inputs(asked)
        for example in inputs.verifiers.examples.values():
            inputs.verifiers.check_alone(example.verifier, "A response of asyncrl select")
        return cls(inputs, model)

    def table(self) -> TaskTable:
        assert isinstance(self.inputs.train_tasks, TaskTable)
        return self.inputs.train_tasks

    def version(self) -> PolicyVersion:
        """The model's: steps behind its weights, 0 of a base model."""
        return 0 if self.model.label == BASE else int(self.model.folder.parent.name.removeprefix("step-"))

    async def generate(
        self, lacking: Mapping[str, int], other: AuditTasks | None
    ) -> dict[str, list[Candidate]]:
        """Row id -> as many responses as it lacks; none for a row that cannot be asked. `other` grades them,
        in place of the rows' verifiers. Raises EvaluationFailed."""
        recipe = self.inputs.recipe
        found: dict[str, list[Candidate]] = {}
        # Weights take as long as the disk needs.
        keep = partial(keep_answers, recipe, self.model, self.inputs.verifiers, regrades=False)
        with AnswerStore(answers_file(recipe)) as store:
            async with asking(self.inputs) as make_evaluator:
                evaluator = dataclasses.replace(
                    make_evaluator(),
                    sampling=self.inputs.rollout_sampling(),
                    codec=self.inputs.codec,
                    kept=await asyncio.to_thread(keep, store=store),
                )
                parts = self._parts(lacking, other)
                is_kept = all(not _num_missing(evaluator, tasks, number) for tasks, number in parts)
                # Servers of an earlier seed would draw the samples again that are kept.
                serving = (
                    serve_nothing()
                    if is_kept
                    else serve_folder(recipe, self.model.folder, seed=store.new_seed(recipe.seed))
                )
                async with serving as served:
                    evaluator = evaluator.on(served.fleet, served.waits, {})
                    await self._ask(evaluator, lacking, other, found, store)
        return found

    async def _ask(
        self,
        evaluator: Evaluator,
        lacking: Mapping[str, int],
        other: AuditTasks | None,
        found: dict[str, list[Candidate]],
        store: AnswerStore,
    ) -> None:
        total = sum(lacking.values())
        console = Console(stderr=True, highlight=False)
        with stage(f"{total:,} responses to {len(lacking):,} rows", total, console=console) as progress:
            evaluator = dataclasses.replace(evaluator, on_graded=progress.advance)
            for tasks, number in self._parts(lacking, other):
                answers = await evaluator.answer(tasks, num_samples=number, is_greedy=False)
                slots = evaluator.slots(tasks, num_samples=number, is_greedy=False)
                for place, (task, responses) in enumerate(zip(tasks, answers, strict=True)):
                    kept = store.answers(slots[place * number].key, number)
                    found[task.task_id] = [
                        self._candidate(task, sample, response, kept[sample].tokens)
                        for sample, response in enumerate(responses)
                    ]

    def _candidate(
        self, task: Task, sample: int, response: GradedResponse, tokens: Sequence[int]
    ) -> Candidate:
        return Candidate(
            f"{task.task_id}+{sample}",
            task.task_id,
            None,
            None,
            self.version(),
            self.version(),
            (Finish.LENGTH if response.is_cut else Finish.STOP).value,
            response.text,
            response.num_tokens,
            response.score,
            task.verifier,
            asked=task.prompt,
            generated=GeneratedTokens(task.prompt_tokens, tokens),
        )

    def _parts(
        self, lacking: Mapping[str, int], other: AuditTasks | None
    ) -> Iterator[tuple[list[Task], int]]:
        """Tasks that lack as many responses each, some at a time, and that number."""
        by_number = sorted(lacking, key=lambda row_id: lacking[row_id])
        for number, row_ids in itertools.groupby(by_number, key=lambda row_id: lacking[row_id]):
            rest = iter(row_ids)
            while some := list(itertools.islice(rest, max(1, RESPONSES_AT_ONCE // number))):
                tasks = [task for row_id in some if (task := self._task(row_id, other)) is not None]
                if tasks:
                    yield tasks, number

    def _task(self, row_id: str, other: AuditTasks | None) -> Task | None:
        task = self.table().find(row_id)
        if task is None or other is None:
            return task
        graded = other.tasks.get(row_id)
        if graded is None:
            return None
        return dataclasses.replace(
            task,
            verifier=graded.verifier,
            reference=graded.reference,
            row=graded.row or task.row,
            messages=graded.messages or task.messages,
        )


def _num_missing(evaluator: Evaluator, tasks: Sequence[Task], number: int) -> int:
    slots: list[Slot] = evaluator.slots(tasks, num_samples=number, is_greedy=False)
    return len(slots) if evaluator.kept is None else evaluator.kept.num_missing(slots)
