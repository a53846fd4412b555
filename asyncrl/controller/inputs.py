"""Inputs of a run: recipe, tasks, tokenizer and verifiers, read and checked before anything starts; and the
parts that evaluate with them, in a run and for `asyncrl eval`.
"""

import functools
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from asyncrl.evaluation.evaluation_set import EvaluationSet, evaluation_sampling
from asyncrl.evaluation.evaluator import EvaluatedAgents, Evaluator
from asyncrl.loops import Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.records import SamplingParams, Task
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.rollout.grade import Grader
from asyncrl.serving.fleet import Fleet
from asyncrl.system.places import LOGS, cache_folder
from asyncrl.tasks.order import TaskOrder, TaskTable
from asyncrl.tasks.recorded import WarmedOrder
from asyncrl.tasks.source_choice import make_source_choice
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.kit import TurnKit, conversations_of
from asyncrl.turns.pool import EpisodePool


@dataclass(frozen=True)
class Inputs:
    """Inputs of one start of a run."""

    recipe: Recipe
    train_tasks: TaskTable | list[Task]
    heldout_tasks: list[Task]
    codec: TextCodec
    verifiers: VerifierCache
    context_tokens: int
    has_moved_rows: bool = False
    """data.train is not the file that the run's journal was written with."""
    rendered: datetime = field(default_factory=datetime.now)
    """The time that chat templates were told, local and without a zone: a later start tells them the same."""
    eval_sets: tuple[EvaluationSet, ...] = ()
    """The benchmarks of evaluation.benchmarks, and evaluation.sets."""
    heldout_rows: list[Task] = field(default_factory=list)
    """The rows of data.heldout whose loss is measured, in a stage that learns from rows."""
    sizes: tuple[int, ...] = ()
    """Training tasks of each source of data.train; empty where that is one."""
    recorded: tuple[Task, ...] = ()
    """The groups of critic.warmup_run that the run begins with; none once its warm-up is over."""
    num_filtered: int = 0
    """Rows of data.train that data.filter leaves out."""
    kit: TurnKit | None = None
    """Tools of the run, and how they are called; None where trajectories have one turn."""
    evaluation_kit: TurnKit | None = None
    """The same for evaluations, whose responses may end otherwise; None: as `kit`."""

    def order(self) -> TaskOrder:
        """In which training tasks are asked. Raises InputError for a mixture whose weights do not work."""
        recipe, num_recorded = self.recipe, self.recipe.num_recorded_groups()
        levels = self.train_tasks.levels() if isinstance(self.train_tasks, TaskTable) else ()
        chooser = make_source_choice(recipe, self.sizes or (len(self.train_tasks),), levels)
        make = TaskOrder if not num_recorded else functools.partial(WarmedOrder, self.recorded, num_recorded)
        return make(self.train_tasks, seed=recipe.seed, is_shuffled=recipe.data.is_shuffled, chooser=chooser)

    def longest_prompt(self) -> int:
        """Longest prompt of the training tasks, in tokens; of many, among those with the most bytes. Of rows
        that are learned the whole is one: nothing is generated behind it."""
        if self.recipe.learns_from_rows():
            rows = [*self.train_tasks, *self.heldout_rows]
            return max(int(task.reference.num_tokens()) for task in rows)
        if isinstance(self.train_tasks, TaskTable):
            return self.train_tasks.longest_prompt()
        return max(len(task.prompt_tokens) for task in self.train_tasks)

    def longest_evaluated(self) -> int:
        """In tokens: the longest prompt of data.heldout and evaluation.sets with the longest response that
        an evaluation may make of it; 0 without any."""
        observed = self.recipe.longest_response() - self.recipe.rollout.max_new_tokens
        limit = self.recipe.evaluation.rollout_of(self.recipe.rollout).max_new_tokens
        own = [(each.tasks, each.sampling.max_new_tokens) for each in self.eval_sets if each.is_own]
        asked = [(self.heldout_tasks, limit), *own]
        longest = (len(task.prompt_tokens) + most + observed for tasks, most in asked for task in tasks)
        return min(self.context_tokens, max(longest, default=0))

    def longest_trajectory(self) -> int:
        """In tokens: the longest prompt with the longest response and what it may observe."""
        return min(self.context_tokens, self.longest_prompt() + self.recipe.longest_response())

    def rollout_sampling(self) -> SamplingParams:
        rollout = self.recipe.rollout
        return SamplingParams(
            rollout.temperature,
            rollout.max_new_tokens,
            self.codec.stop_token_ids,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            min_p=rollout.min_p,
        )

    def evaluation_codec(self) -> TextCodec:
        """The codec that knows what ends the responses of evaluations."""
        return self.codec if self.evaluation_kit is None else self.evaluation_kit.codec

    def evaluation_sampling(self) -> SamplingParams:
        """Sampling of evaluations that sample; greedy ones ignore the temperature."""
        section = self.recipe.evaluation
        limit = section.rollout_of(self.recipe.rollout).max_new_tokens
        return evaluation_sampling(section, self.evaluation_codec(), section.temperature, limit)


def make_episodes(recipe: Recipe, run_folder: Path | None, hidden: Sequence[Path]) -> EpisodePool | None:
    """None where trajectories have one turn. Starts no process yet. Processes cannot read `hidden`."""
    turns = recipe.turns
    if not turns.is_on():
        return None
    return EpisodePool(
        tools=[{tool.name: tool.options} for tool in turns.tools],
        folder=recipe.verifying.own_files(),
        max_processes=turns.max_processes,
        timeout_seconds=turns.timeout_seconds,
        memory_bytes=turns.memory_mib * 2**20,
        prints=None if run_folder is None else run_folder / LOGS / "turns.log",
        hidden=hidden,
    )


@asynccontextmanager
async def episodes_of(recipe: Recipe, hidden: Sequence[Path]) -> AsyncIterator[EpisodePool | None]:
    """The processes of an evaluation or a chat without a run."""
    episodes = make_episodes(recipe, None, hidden)
    try:
        yield episodes
    finally:
        if episodes is not None:
            await episodes.close()


def make_conversations(inputs: Inputs, episodes: EpisodePool | None) -> Conversations | None:
    """None where trajectories have one turn."""
    if episodes is None or inputs.kit is None:
        return None
    return conversations_of(inputs.kit, inputs.recipe, episodes)


def hidden_files(
    recipe: Recipe, run_folder: Path | None, eval_sets: Sequence[EvaluationSet] = ()
) -> list[Path]:
    """The run folder, and files on this machine that hold golds: no environment, tool or agent may read
    them."""
    data = recipe.data
    sources = [*data.train_sources(), *(data.heldout_sources() if data.heldout is not None else [])]
    paths = [Path(source.path) for source in sources if source.path is not None]
    paths += [Path(path) for eval_set in eval_sets for path in eval_set.paths]
    paths += [cache_folder("gym"), cache_folder("tasks")]
    return [*([] if run_folder is None else [run_folder]), *(path for path in paths if path.exists())]


def make_evaluator(
    inputs: Inputs,
    run_id: str,
    fleet: Fleet,
    waits: Waits,
    grader: Grader,
    conversations: Conversations | None,
    agents: AgentKit | None,
) -> Evaluator:
    """Evaluations on the servers of `fleet`; `run_id` opens every request id."""
    if conversations is not None:
        # Counts of their own: what rollouts did is not theirs.
        calls = conversations.calls if inputs.evaluation_kit is None else inputs.evaluation_kit.calls
        conversations = conversations.by(inputs.evaluation_codec(), calls)
    return Evaluator(
        fleet=fleet,
        waits=waits,
        grader=grader,
        codec=inputs.evaluation_codec(),
        sampling=inputs.evaluation_sampling(),
        context_tokens=inputs.context_tokens,
        run_id=run_id,
        counter=itertools.count(),
        conversations=conversations,
        max_turn_tokens=inputs.recipe.turns.max_turn_tokens,
        agents=None if agents is None else EvaluatedAgents(agents),
    )
