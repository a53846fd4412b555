"""What the processes of a run need of this machine's memory, together; for `check`, `plan` and the start."""

from asyncrl.recipe import Recipe
from asyncrl.trainer.folder import ModelShape
from asyncrl.trainer.layout import check_layout
from asyncrl.trainer.memory import RankMemory, rank_memory, server_memory

SERVER_PROCESS_BYTES = 900 * 2**20
"""A server's processes without weights and cache, as measured on a CPU."""
TRAINER_PROCESS_BYTES = 600 * 2**20
"""A trainer rank without what `rank_memory` counts."""


def trainer_memory(recipe: Recipe, shape: ModelShape) -> RankMemory:
    """Of the fullest trainer rank. Raises InputError for a layout that cannot work."""
    return rank_memory(
        shape,
        dtype=recipe.model.dtype,
        tokens_per_micro_batch=min(recipe.trainer.tokens_per_micro_batch, _most_tokens(recipe, shape)),
        layout=check_layout(recipe.trainer, shape),
        has_critic=recipe.algorithm.needs_critic(),
        has_reference=recipe.algorithm.kl_coefficient > 0,
    )


def _most_tokens(recipe: Recipe, shape: ModelShape) -> int:
    """Of a whole batch, were every sequence as long as the context: fewer than a micro-batch may hold."""
    context = recipe.model.context_tokens or shape.max_positions
    return recipe.groups_per_step() * recipe.rollout.samples_per_group * context


def num_local_servers(recipe: Recipe) -> int:
    """Rollout and evaluation servers that the run starts itself."""
    rollout = 0 if recipe.serving.servers else recipe.serving.num_servers
    return rollout + recipe.evaluation.num_servers


def run_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """All servers and trainer ranks on one CPU machine."""
    rank = trainer_memory(recipe, shape).total(is_recomputing=recipe.trainer.recompute == "full")
    server = recipe.serving.tensor_parallel_size * sum(server_memory(shape, recipe).values())
    return recipe.trainer.num_processes * (TRAINER_PROCESS_BYTES + rank) + num_local_servers(recipe) * (
        SERVER_PROCESS_BYTES + server
    )
