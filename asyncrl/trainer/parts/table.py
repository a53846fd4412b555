"""From a recipe to its learner: the table of all parts.

The order of the table is the order in which the parts act at each stage. Where it matters a row says which
parts come before: any order that keeps `after` makes the same step.
"""

from collections.abc import Callable
from typing import NamedTuple

from asyncrl.algorithms.own_terms import own_names
from asyncrl.model.dtype import with_dtype
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import Unsampled, find_unsampled
from asyncrl.recipe import Recipe
from asyncrl.trainer.parts.controls import EntropyTarget, ExpertLoads, LossScale, RateScaling
from asyncrl.trainer.parts.critic import Critic, VTrace
from asyncrl.trainer.parts.judgments import Judgments, second_moment_limit
from asyncrl.trainer.parts.objectives import OwnTerms, make_objective
from asyncrl.trainer.parts.records import Spikes, TokenRecord
from asyncrl.trainer.parts.reference import KlReward, PastVersions, Reference
from asyncrl.trainer.parts.served_columns import KeptTokens, RouteCheck, RoutingReplay
from asyncrl.trainer.parts.teacher import Teacher
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import StepPart


class Row(NamedTuple):
    """One part."""

    make: Callable[[Learner, Recipe], StepPart]
    """Its class, mostly."""
    is_wanted: Callable[[Recipe, ModelShape], bool]
    keys: tuple[str, ...] = ()
    """Keys of the recipe that no file of the core reads: sections, or keys of `algorithm` and `trainer`."""
    after: tuple[Callable[[Learner, Recipe], StepPart], ...] = ()
    """Parts that act before this one."""
    remembers: bool = False
    """Whether its columns need the steps before, and a step is the same without it: `asyncrl reproduce`
    leaves it out."""


def _always(recipe: Recipe, shape: ModelShape) -> bool:
    return True


PARTS = (
    Row(OwnTerms, lambda recipe, _: bool(own_names(recipe.algorithm))),
    Row(KeptTokens, _always),
    Row(RouteCheck, _always, keys=("routing_replay",)),
    Row(
        PastVersions,
        lambda recipe, _: recipe.trainer.splits_staleness,
        keys=("splits_staleness", "max_staleness"),
        remembers=True,
    ),
    Row(
        RoutingReplay,
        lambda recipe, _: recipe.algorithm.routing_replay != "none",
        keys=("routing_replay",),
        # Past versions take the routes of the policy. The reference does not, and routes for itself.
        after=(PastVersions,),
    ),
    Row(
        Reference,
        lambda recipe, _: recipe.stage == "dpo" or recipe.algorithm.kl.coefficient > 0,
        keys=("refresh_steps", "refresh_resets_optimizer"),
    ),
    Row(
        VTrace, lambda recipe, _: _has_critic(recipe) and recipe.critic.targets == "v_trace", keys=("critic",)
    ),
    Row(
        Critic,
        lambda recipe, _: _has_critic(recipe),
        keys=("critic", "gae_lambda", "gamma", "length_alpha", "is_whitened"),
    ),
    Row(
        KlReward,
        lambda recipe, _: recipe.algorithm.has_kl_reward(),
        keys=("has_kl_reward",),
        # It asks the reference. A critic takes the penalties first, into its rewards.
        after=(Reference, Critic),
    ),
    Row(
        Teacher,
        _always,
        keys=("teacher",),
        # Nothing is done to the scale or the mean of a teacher's advantages: they come last.
        after=(KlReward,),
    ),
    Row(
        Judgments,
        lambda recipe, _: (
            recipe.algorithm.top_entropy_share < 1
            or recipe.algorithm.entropy_control.name != "none"
            or second_moment_limit(recipe.algorithm) is not None
        ),
        keys=("top_entropy_share", "entropy_control"),
    ),
    Row(ExpertLoads, lambda _, shape: shape.num_experts is not None, keys=("router",)),
    Row(
        EntropyTarget,
        lambda recipe, _: recipe.algorithm.entropy_bonus.target is not None,
        keys=("target", "max_coefficient"),
    ),
    Row(
        RateScaling,
        lambda recipe, _: recipe.trainer.learning_rate_scaling != "none",
        keys=("learning_rate_scaling",),
    ),
    Row(LossScale, lambda recipe, _: recipe.model.dtype == "float16"),
    Row(Spikes, _always),
    Row(
        TokenRecord,
        lambda recipe, _: recipe.view.groups_per_step > 0 and not recipe.learns_from_rows(),
        keys=("view",),
    ),
)


def _has_critic(recipe: Recipe) -> bool:
    return recipe.algorithm.needs_critic()


def build_learner(
    shape: ModelShape, recipe: Recipe, unsampled: Unsampled | None = None, *, remembers: bool = True
) -> Learner:
    """A learner with the parts of its recipe, without weights (`Learner.load_base`, `Checkpoints.load`).

    `unsampled` are the tokens that the servers never sample, by default those of the model folder. Without
    `remembers` parts are left out that need the steps before and change none. Raises InputError when a term
    of the recipe's own cannot be loaded.
    """
    recipe = recipe.model_copy(update={"model": with_dtype(recipe, shape)})
    if recipe.learns_from_rows():
        # Rows may hold any token, and nothing masked the logits of what wrote them.
        unsampled = Unsampled()
    elif unsampled is None:
        unsampled = find_unsampled(model_folder(recipe.model), recipe.rollout.stop_tokens)
    learner = Learner(shape, recipe, make_objective(recipe), unsampled=unsampled)
    for row in PARTS:
        if row.is_wanted(recipe, shape) and (remembers or not row.remembers):
            learner.parts.append(row.make(learner, recipe))
    return learner
