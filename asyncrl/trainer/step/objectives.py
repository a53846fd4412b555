"""Which objective a stage minimizes."""

from asyncrl.recipe import Recipe
from asyncrl.trainer.step.likelihood import Likelihood
from asyncrl.trainer.step.objective import Objective
from asyncrl.trainer.step.preference import Preference


def make_objective(recipe: Recipe) -> Objective:
    """That of a recipe's stage. Raises InputError when a term of its own cannot be loaded."""
    if recipe.stage == "sft":
        return Likelihood(recipe.algorithm)
    if recipe.stage == "dpo":
        return Preference(recipe)
    rollout = recipe.rollout
    return Objective(
        recipe.algorithm,
        max_new_tokens=rollout.max_new_tokens,
        mask_staleness=rollout.mask_staleness,
        forward_kl_coefficient=recipe.teacher.top_k_coefficient,
    )
