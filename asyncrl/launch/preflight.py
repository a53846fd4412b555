"""The inputs of a run, read and checked before any process starts or any file of the run is written.

Raises InputError with one clear sentence; returns what the run works on.
"""

import contextlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.controller.inputs import Inputs
from asyncrl.data.benchmarks import Benchmark
from asyncrl.errors import InputError
from asyncrl.evaluation.asked_sets import benchmarks_of, read_evaluation_sets
from asyncrl.evaluation.evaluation_set import EvaluationSet, heldout_set
from asyncrl.journal.reader import find_journal
from asyncrl.journal.starts import changed_data, words_of_change
from asyncrl.launch.engine_options import check_options
from asyncrl.launch.trial import try_verifiers
from asyncrl.launch.turn_trial import try_turns
from asyncrl.model.folder import check_model_folder
from asyncrl.model.layout import check_layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.side_models import TEACHER, check_length, opponent_process, read_side_models
from asyncrl.model.source import model_folder
from asyncrl.model.supported import check_packages, check_serving, check_supported
from asyncrl.observe.terminal.stage import LateStage
from asyncrl.recipe import Recipe
from asyncrl.records import Task
from asyncrl.replay.repetition import restored_tasks
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.agents.kit import check_agent
from asyncrl.run.folder import RunFolder, data_digests
from asyncrl.tasks.demonstrations import heldout_demonstrations, train_demonstrations
from asyncrl.tasks.digests import tokenizer_digest
from asyncrl.tasks.order import TaskTable
from asyncrl.tasks.recorded import read_recorded_tasks
from asyncrl.tasks.source_choice import read_heldout_tasks
from asyncrl.tasks.task_list import read_train_tasks
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.kit import TurnKit, answered_example, read_kit

log = logging.getLogger(__name__)


def read_inputs(recipe: Recipe) -> tuple[Inputs, ModelShape]:
    """Model folder, data and benchmarks of a recipe, checked in full."""
    find_advantage(recipe.algorithm)
    base = _read_base(recipe)
    _check_critic(recipe, base)
    # Before the data, which may take minutes to read.
    side_models = read_side_models(recipe)
    check_layout(recipe, base.shape)
    check_supported(recipe, base.shape)
    if recipe.cluster.backend == "local":
        # Other nodes have other packages and GPUs: there each rank looks for itself.
        check_packages(recipe, base.shape)
        check_serving(recipe, base.shape)
    if recipe.learns_from_rows():
        return _read_rows(recipe, base), base.shape
    train = read_train_tasks(recipe, base.kit.codec, base.verifiers, base.context_tokens, LateStage)
    has_pilot = recipe.rollout.pilot_samples is not None
    base.verifiers.check_groups(recipe.trajectories_per_group(), has_pilot=has_pilot)
    heldout = read_heldout_tasks(recipe, base.kit.codec, base.verifiers, base.context_tokens, LateStage)
    eval_sets = _read_eval_sets(recipe, base, benchmarks_of(recipe))
    _warn_of_asked_prompts(train.tasks, heldout, eval_sets)
    _warn_of_few_tasks(len(train.tasks), recipe)
    inputs = base.inputs(recipe, train.tasks, heldout, eval_sets, train.sizes, train.num_filtered)
    recorded = read_recorded_tasks(recipe, base.folder, base.context_tokens)
    inputs = replace(inputs, recorded=tuple(recorded))
    for name in recipe.agent.opponents:
        model, key = side_models[opponent_process(name)], f"agent.opponents.{name}"
        check_length(model, base.context_tokens - 1, key)
    if (teacher := side_models.get(TEACHER)) is not None:
        check_length(teacher, inputs.longest_trajectory(), "teacher.path")
    inputs.order()  # It knows whether the weights of a mixture work.
    return inputs, base.shape


def _check_critic(recipe: Recipe, base: "_Base") -> None:
    """Raises InputError where the model at critic.path is none that the policy's layers and tokens fit."""
    if recipe.critic.path is None or not recipe.algorithm.needs_critic():
        return
    folder = model_folder(recipe.critic_model())
    found = check_model_folder(folder)
    for one in fields(found):
        own, others = getattr(base.shape, one.name), getattr(found, one.name)
        # A critic has no output layer.
        if own != others and one.name != "is_tied":
            raise InputError(
                f"critic.path is {folder}, whose {one.name} is {others}, but that of model.path is {own}. "
                f"The critic has the policy's layers: name a model of the same shape."
            )
    if tokenizer_digest(folder) != tokenizer_digest(base.folder):
        raise InputError(
            f"critic.path is {folder}, whose tokenizer.json is not that of model.path, {base.folder}: its "
            f"tokens would mean others. Name a model with the same tokenizer."
        )


def _read_rows(recipe: Recipe, base: "_Base") -> Inputs:
    """The inputs of a stage that learns from rows; held-out rows are also tasks where servers answer them."""
    asked = (base.kit.codec, base.context_tokens, base.shape.vocab_size, LateStage)
    train = train_demonstrations(recipe, *asked)
    rows = heldout_demonstrations(recipe, *asked) if recipe.data.heldout is not None else []
    tasks: list[Task] = []
    if rows and recipe.evaluation.verifier is not None:
        tasks = read_heldout_tasks(recipe, base.kit.codec, base.verifiers, base.context_tokens, LateStage)
    eval_sets = _read_eval_sets(recipe, base, benchmarks_of(recipe))
    if rows:
        _warn_of_shared_rows(train, rows)
    _warn_of_asked_prompts(train, tasks, eval_sets)
    _warn_of_few_tasks(len(train), recipe)
    sizes = tuple(len(list(own)) for _, own in groupby(train, key=Task.source))
    return replace(base.inputs(recipe, train, tasks, eval_sets, sizes), heldout_rows=rows)


def read_evaluation_inputs(recipe: Recipe, benchmarks: Sequence[Benchmark], *, has_heldout: bool) -> Inputs:
    """Model folder and what is evaluated, checked in full, without the training data."""
    base = _read_base(recipe)
    heldout: list[Task] = []
    if has_heldout:
        heldout = read_heldout_tasks(recipe, base.kit.codec, base.verifiers, base.context_tokens, LateStage)
    eval_sets = _read_eval_sets(recipe, base, benchmarks)
    if heldout:
        eval_sets = (heldout_set(recipe, heldout, base.evaluation_kit), *eval_sets)
    return base.inputs(recipe, [], heldout, eval_sets)


def read_training_inputs(recipe: Recipe) -> Inputs:
    """Model folder and training data, checked in full, without what is evaluated."""
    base = _read_base(recipe)
    train = read_train_tasks(recipe, base.kit.codec, base.verifiers, base.context_tokens, LateStage)
    return base.inputs(recipe, train.tasks, [], (), train.sizes, train.num_filtered)


def _read_eval_sets(
    recipe: Recipe, base: "_Base", benchmarks: Sequence[Benchmark]
) -> tuple[EvaluationSet, ...]:
    return read_evaluation_sets(
        recipe, benchmarks, base.folder, base.verifiers, base.context_tokens, now=base.rendered
    )


@dataclass(frozen=True, slots=True)
class _Base:
    """Shared inputs for reading tasks."""

    folder: Path
    shape: ModelShape
    kit: TurnKit
    evaluation_kit: TurnKit
    verifiers: VerifierCache
    context_tokens: int
    rendered: datetime

    def inputs(
        self,
        recipe: Recipe,
        train: TaskTable | list[Task],
        heldout: list[Task],
        eval_sets: tuple[EvaluationSet, ...],
        sizes: tuple[int, ...] = (),
        num_filtered: int = 0,
    ) -> Inputs:
        """Once every verifier, environment, tool and agent of them works."""
        if recipe.agent.verdict == "branch":
            self.verifiers.check_branches()
        try:
            self.verifiers.check_machine()
            # What a verifier prints must not end up in a table or in JSON.
            with contextlib.redirect_stdout(sys.stderr):
                try_verifiers(self.verifiers, recipe.verifying)
                tasks = train.with_each_environment() if isinstance(train, TaskTable) else train
                try_turns(recipe, self.kit, [*tasks, *heldout])
        finally:
            self.verifiers.close()
        return Inputs(
            recipe,
            train,
            heldout,
            self.kit.codec,
            self.verifiers,
            self.context_tokens,
            rendered=self.rendered,
            eval_sets=eval_sets,
            sizes=sizes,
            num_filtered=num_filtered,
            kit=self.kit,
            evaluation_kit=self.evaluation_kit,
        )


def _read_base(recipe: Recipe) -> _Base:
    check_options(recipe)
    folder = model_folder(recipe.model)
    shape = check_model_folder(folder)
    context_tokens = recipe.model.context_tokens or shape.max_positions
    if context_tokens > shape.max_positions:
        raise InputError(
            f"model.context_tokens is {context_tokens} but the model was made for {shape.max_positions} "
            f"positions (max_position_embeddings or sliding_window of {folder}; of longrope "
            f"original_max_position_embeddings, beyond which servers and transformers choose other angles). "
            f"Lower model.context_tokens."
        )
    # A context that the recipe states was compared when it was read.
    if recipe.model.context_tokens is None and recipe.rollout.max_new_tokens >= context_tokens:
        raise InputError(
            f"rollout.max_new_tokens is {recipe.rollout.max_new_tokens} but the context holds "
            f"{context_tokens} tokens: no room is left for a prompt. Lower rollout.max_new_tokens."
        )
    try:
        recipe.evaluation.check_all(context_tokens)
    except ValueError as error:
        raise InputError(str(error)) from error
    rendered = RunFolder(recipe.folder()).rendering_time() or datetime.now()
    kit = read_kit(recipe, folder, now=rendered)
    asked = recipe.evaluation.rollout_of(recipe.rollout)
    is_alike = (asked.stop, asked.stop_tokens) == (recipe.rollout.stop, recipe.rollout.stop_tokens)
    evaluation_kit = kit if is_alike else read_kit(recipe, folder, rollout=asked, now=rendered)
    check_agent(recipe, kit.codec)
    # Raises for a chat template that cannot write what answers a turn.
    answered_example(kit, recipe.turns)
    verifiers = VerifierCache(recipe.verifying.own_files())
    return _Base(folder, shape, kit, evaluation_kit, verifiers, context_tokens, rendered)


def check_unfinished(inputs: Inputs, journal: Path) -> list[str]:
    """Remarks on the data of a run that resumes: a sentence per file that changed.

    Raises InputError, as the start would, where the data lacks a prompt that the journal's groups ask.
    """
    reader = find_journal(journal)
    if reader is None:
        return []
    recipe = inputs.recipe
    changed = changed_data(reader, data_digests(recipe))
    order = inputs.order()
    for task_id, prompt in restored_tasks(reader, QueueSettings.of(recipe)):
        order.find(task_id, prompt, may_have_moved="data.train" in changed)
    return [words_of_change(key) for key in changed]


def _warn_of_few_tasks(num_tasks: int, recipe: Recipe) -> None:
    batch = recipe.rollout.groups_per_batch
    if num_tasks < batch:
        times = -(-batch // num_tasks)
        log.warning(
            "data.train has %d task(s) for batches of %d groups (rollout.groups_per_batch): a batch asks the "
            "same task up to %d times. Add rows, or lower rollout.groups_per_batch.",
            num_tasks,
            batch,
            times,
        )


def _warn_of_asked_prompts(
    train: TaskTable | list[Task], heldout: Sequence[Task], eval_sets: Sequence[EvaluationSet]
) -> None:
    own = [(f"evaluation.sets {each.name}", each.tasks) for each in eval_sets if each.is_own]
    for key, asked in (("data.heldout", heldout), *own):
        prompts = {task.prompt for task in asked}
        tasks = train.with_prompts(prompts) if isinstance(train, TaskTable) else train
        trained = {task.prompt: task.task_id for task in tasks if task.prompt in prompts}
        shared = [(task.task_id, trained[task.prompt]) for task in asked if task.prompt in trained]
        _warn_of_shared(shared, len(asked), "have the prompt of a training row", "accuracy", key)


def _warn_of_shared_rows(train: list[Task], heldout: list[Task]) -> None:
    """Learned rows whose whole conversation is one of a training row: prompts alone may be alike."""
    trained = {line.tokens(): task.task_id for task in train for line in task.reference.lines()}
    found = (
        (task.task_id, [trained.get(line.tokens()) for line in task.reference.lines()]) for task in heldout
    )
    shared = [(name, next(filter(None, same))) for name, same in found if any(same)]
    _warn_of_shared(shared, len(heldout), "have the text of a training row", "loss", "data.heldout")


def _warn_of_shared(
    shared: Sequence[tuple[str, str]], num_heldout: int, words: str, measured: str, key: str
) -> None:
    """`shared` are ids of held-out rows, each with that of a training row."""
    if shared:
        log.warning(
            "WARNING: %d of %d held-out rows %s, first %s that of %s: held-out %s then measures what was "
            "trained. Take them out of data.train or %s.",
            *(len(shared), num_heldout, words, *shared[0], measured, key),
        )
