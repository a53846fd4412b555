"""The evaluator of a recipe, for a run and for `asyncrl eval`."""

import itertools

from asyncrl.controller.inputs import Inputs
from asyncrl.evaluation.evaluator import EvaluatedAgents, Evaluator
from asyncrl.loops.waits import Waits
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.rollout.grade import Grader
from asyncrl.serving.fleet import Fleet
from asyncrl.turns.conversation import Conversations


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
