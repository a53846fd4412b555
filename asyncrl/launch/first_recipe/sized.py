"""A recipe for a model, a number of GPUs and a goal: sized by what `asyncrl plan` knows."""

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from asyncrl.errors import InputError
from asyncrl.launch.first_recipe.commented import Row, plain, text
from asyncrl.launch.first_recipe.keys import OBSERVED_TOKENS, PROMPT_TOKENS, TURNS, Draft, Packing, Wish
from asyncrl.launch.first_recipe.rows import Rows
from asyncrl.launch.meters.memory import FULL_SHARE, trainer_memory
from asyncrl.model.dtype import disk_notes
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import check_supported
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.division import Division, choose, fewest_gpus, step_seconds
from asyncrl.readers.planning.estimated import STATIC_SHARE, assumed_lengths
from asyncrl.readers.planning.settings import Lengths
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe

MOST_GPUS = 1024
"""Where the search for the fewest that fit ends."""
RESPONSES = {"math": 8192, "code": 4096, "tools": 8192}
"""Longest response by goal, unless the data say."""
STATE_BYTES = 18
"""Per parameter: bfloat16 weights, float32 gradients and master weights, two moments."""
CACHED_TRAJECTORIES, SHARED_TRAJECTORIES = 16, 8
"""Longest ones that a server's cache must hold at once, on GPUs of its own, and on shared ones."""
LARGEST_CACHE = 2**20
"""Tokens of the cache of a server that shares its GPU."""
MICRO_BATCH = 16384

Check = Callable[[Recipe, ModelShape], None]
"""Raises InputError where a recipe does not fit into the wish's GPUs: `asyncrl plan`."""


@dataclass(frozen=True, slots=True)
class Sized:
    division: Division
    recipe: Recipe
    text: str


def sized_recipe(wish: Wish, shape: ModelShape, rows: Rows, check: Check) -> Sized:
    """The fastest recipe that fits. Raises InputError with the fewest GPUs that do where none does."""
    sizer = _Sizer(wish, shape, rows, check)
    division = choose(shape, wish.num_gpus, sizer.fits, sizer.seconds)
    if division is None:
        raise InputError(_too_few(wish, shape, sizer))
    if disk_notes(sizer.recipe(division), shape):
        sizer.transport = "distributed"
    recipe = sizer.recipe(division)
    check(recipe, shape)
    return Sized(division, recipe, text(_title(wish, shape, division), sizer.keys(division)))


def _recipe(keys: Iterable[Row]) -> Recipe:
    return parse_recipe(plain(keys), source="the new recipe")


class _Sizer:
    """Makes the recipe of a division, and remembers what fits."""

    def __init__(self, wish: Wish, shape: ModelShape, rows: Rows, check: Check) -> None:
        self._wish, self._shape, self._rows, self._check = wish, shape, rows, check
        self._packings: dict[Division, Packing | None] = {}
        self.transport = "disk"
        observed = (TURNS - 1) * OBSERVED_TOKENS if wish.goal == "tools" else 0
        asked = rows.response_tokens or RESPONSES[wish.goal]
        most = shape.max_positions - PROMPT_TOKENS - observed
        if most < 1:
            raise InputError(
                f"{wish.model} was made for {shape.max_positions} positions, which leaves no room for a "
                f"prompt of {PROMPT_TOKENS} tokens and a response. Name a model with a longer context."
            )
        self.response = min(asked, most)
        self.context = PROMPT_TOKENS + observed + self.response

    def fits(self, division: Division) -> bool:
        return self._packing(division) is not None

    def seconds(self, division: Division) -> float:
        recipe = self.recipe(division)
        return step_seconds(self._shape, recipe, division, self._lengths, self._wish.gpu)

    def recipe(self, division: Division) -> Recipe:
        return _recipe(self.keys(division))

    @functools.cached_property
    def _lengths(self) -> Lengths:
        recipe = _recipe(self._keys(Division(1, 1, 1), Packing(MICRO_BATCH, "full")))
        return assumed_lengths(recipe, prompt_tokens=PROMPT_TOKENS / 4)

    def _packing(self, division: Division) -> Packing | None:
        """The first way to pack that fits. The trainer does not ask how many servers there are beside it."""
        key = division if division.is_colocated else replace(division, num_servers=1)
        if key not in self._packings:
            may_fit = self._state_fits(key) and self._server_fits(key)
            self._packings[key] = self._find_packing(key) if may_fit else None
        return self._packings[key]

    def _state_fits(self, division: Division) -> bool:
        """Whether weights, gradients and Adam's states fit in equal parts: spares most of a search."""
        states = STATE_BYTES * num_parameters(self._shape)
        return states <= division.num_ranks * FULL_SHARE * self._wish.gpu.memory_gb * 1e9

    def _server_fits(self, division: Division) -> bool:
        """Whether a server that has its GPUs alone has a cache worth the name."""
        if division.is_colocated:
            return True
        return self._cache_tokens(division, STATIC_SHARE) >= CACHED_TRAJECTORIES * self.context

    def _cache_tokens(self, division: Division, share: float, taken: int = 0) -> int:
        """Tokens of a server's cache where `taken` bytes of each GPU are another's."""
        ranks = division.server_ranks
        weights = 2 * num_parameters(self._shape) // ranks
        per_token = 4 * self._shape.num_layers * self._shape.num_kv_heads * self._shape.head_size / ranks
        room = share * self._wish.gpu.memory_gb * 1e9 - weights - taken
        return max(0, int(room / per_token))

    def _find_packing(self, division: Division) -> Packing | None:
        """The first that fits, fewest recomputations first; None at once where the leanest does not."""
        least = -(-self.context // 1024) * 1024
        sizes = sorted({max(MICRO_BATCH, least), least}, reverse=True)
        *others, leanest = [Packing(tokens, recompute) for recompute in ("none", "full") for tokens in sizes]
        if not self._is_accepted(division, leanest):
            return None
        return next((packing for packing in others if self._is_accepted(division, packing)), leanest)

    def _is_accepted(self, division: Division, packing: Packing) -> bool:
        try:
            recipe = _recipe(self._keys(division, packing))
            check_supported(recipe, self._shape)
            self._check(recipe, self._shape)
        except InputError:
            return False
        least = SHARED_TRAJECTORIES * self.context
        return not division.is_colocated or self._shared_cache(division, packing) >= least

    def _shared_cache(self, division: Division, packing: Packing) -> int:
        """Tokens of the cache of a server beside the sleeping trainer, rounded down."""
        without = _recipe(self._keys(division, packing, cache=1024))
        resident = trainer_memory(without, self._shape).resident()
        tokens = self._cache_tokens(division, 0.95 * FULL_SHARE, resident)
        return min(LARGEST_CACHE, tokens // 1024 * 1024)

    def keys(self, division: Division) -> list[Row]:
        packing = self._packing(division)
        assert packing is not None, division
        return self._keys(division, packing)

    def _keys(self, division: Division, packing: Packing, *, cache: int | None = None) -> list[Row]:
        if division.is_colocated and cache is None:
            cache = max(1024, self._shared_cache(division, packing))
        free = self._cache_tokens(division, STATIC_SHARE)
        sizes = (self.response, self.context, free, cache, self.transport)
        return list(Draft(self._wish, self._shape, self._rows, division, packing, *sizes).keys())


def _title(wish: Wish, shape: ModelShape, division: Division) -> str:
    servers = f"{division.num_servers} server(s) of {division.server_ranks} GPU(s)"
    ranks = f"{division.num_ranks} trainer rank(s)"
    experts = ""
    if shape.num_experts is not None:
        experts = (
            "\nOn GPUs Megatron-core computes experts by Transformer Engine alone: install it (docs/gpus.md)."
        )
    return (
        f"Written by: {wish.command}\n"
        f"For {wish.num_gpus} GPU(s) of {wish.gpu.memory_gb:g} GB: {servers}, {ranks}"
        f"{', on the same GPUs' if division.is_colocated else ''}. Sizes are estimates that asyncrl plan "
        f"makes from the model's shape and a data sheet; comments say what was assumed.{experts}\n\n"
        f"asyncrl check RECIPE    validates all of it, data and model included, where it will run\n"
        f"asyncrl train RECIPE"
    )


def _too_few(wish: Wish, shape: ModelShape, sizer: _Sizer) -> str:
    found = fewest_gpus(shape, sizer.fits, above=wish.num_gpus, most=MOST_GPUS)
    gpus = f"{wish.num_gpus} GPU(s) of {wish.gpu.memory_gb:g} GB"
    ways = "larger GPUs (--gpu-memory), a smaller model, or adapters in a recipe of your own (model.lora)"
    if found is None:
        return (
            f"--model {wish.model} does not fit on {gpus}, nor on {MOST_GPUS} of them, with a context of "
            f"{sizer.context:,} tokens. Take {ways}."
        )
    servers = found.num_servers * found.server_ranks
    split = (
        f"{found.num_ranks} that trainer and servers share"
        if found.is_colocated
        else f"{found.num_ranks} for the trainer, {servers} for servers"
    )
    states = STATE_BYTES * num_parameters(shape) / 1e9
    return (
        f"--model {wish.model} does not fit on {gpus} with a context of {sizer.context:,} tokens: weights, "
        f"gradients and Adam's states take about {states:,.0f} GB in the trainer, "
        f"and each server has the weights once more. The fewest that fit: {found.num_gpus()} ({split}). Set "
        f"--gpus {found.num_gpus()}, or take {ways}."
    )


def file_name(model: str) -> str:
    """A name of letters, digits and underscores: Qwen/Qwen3-8B -> qwen3_8b."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "_", last).strip("_") or "run"
