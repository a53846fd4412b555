"""The evaluator of a recipe and the parts that play its turns, for a run and for `asyncrl eval`."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from asyncrl.controller.inputs import Inputs
from asyncrl.evaluation.evaluation_set import EvaluationSet
from asyncrl.evaluation.evaluator import EvaluatedAgents, Evaluator
from asyncrl.loops.waits import Waits
from asyncrl.recipe import Recipe
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.rollout.grade import Grader
from asyncrl.serving.fleet import Fleet
from asyncrl.system.places import LOGS, cache_folder
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.kit import conversations_of
from asyncrl.turns.pool import EpisodePool


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
    return Evaluator(
        fleet=fleet,
        waits=waits,
        grader=grader,
        codec=inputs.evaluation_codec(),
        sampling=inputs.evaluation_sampling(),
        context_tokens=inputs.context_tokens,
        run_id=run_id,
        counter=itertools.count(),
        # Counts of their own: what rollouts did is not theirs.
        conversations=None if conversations is None else _by(inputs, conversations),
        max_turn_tokens=inputs.recipe.turns.max_turn_tokens,
        agents=None if agents is None else EvaluatedAgents(agents),
    )


def _by(inputs: Inputs, conversations: Conversations) -> Conversations:
    calls = conversations.calls if inputs.evaluation_kit is None else inputs.evaluation_kit.calls
    return conversations.by(inputs.evaluation_codec(), calls)
