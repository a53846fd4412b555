"""Changes of a recipe with which it fits its GPUs, as `asyncrl plan` offers them: the smallest of each kind.

A change is a handful of the recipe's own keys, so that it can be put behind `asyncrl plan RECIPE` or
`asyncrl train RECIPE` as it is. Every layout that is offered passes the recipe's and the layout's own checks.
Memory is that of `trainer_memory` and `server_memory`: on paper, as `asyncrl plan` prints it.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import InputError, did_you_mean
from asyncrl.launch.meters.memory import FULL_SHARE, trainer_memory
from asyncrl.model.families import FAMILIES
from asyncrl.model.memory import server_memory
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.estimated import GPUS, LIKELY_GPU
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.sections.section import value_at

Settings = Mapping[str, Any]
"""Key of the recipe -> value."""
Read = Callable[[Settings], Recipe]
"""The recipe with settings on top. Raises InputError where they do not go together."""
TENSOR_SIZES = (1, 2, 4, 8)
"""Within a node: every layer exchanges activations."""
MOST_STAGES = 16
MOST_GPUS_FACTOR = 64
"""Times as many GPUs at most are suggested."""
LORA_RANK = 32
CACHE_SHARE = 0.15
"""Share of a server's GPU that keys and values need at least, for it to decode more than a few requests."""
CACHE_STEP = 1024
BFLOAT16_STATES = {"trainer.exp_avg_dtype": "bfloat16", "trainer.exp_avg_sq_dtype": "bfloat16"}
OFFLOADED_STATES = {"trainer.optimizer_cpu_offload": True}


@dataclass(frozen=True, slots=True)
class Fit:
    """A change with which everything fits."""

    what: str
    settings: Settings
    """Only what differs from the recipe."""
    num_gpus: int
    """GPUs of trainer and rollout servers together."""
    rank_bytes: int
    """On the GPU of a trainer rank, with a sleeping server's neighbour where they share it."""
    server_bytes: int
    """On a server's GPU, with the least cache."""
    host_bytes: int
    """Host memory per rank."""

    def words(self) -> str:
        """The knobs, to be put behind a command."""
        shown = {key: _yaml(value) for key, value in self.settings.items()}
        return " ".join(f"{key}='{text}'" if " " in text else f"{key}={text}" for key, text in shown.items())


def find_fits(
    recipe: Recipe, shape: ModelShape, read: Read, *, room: float, longest_prompt: int | None = None
) -> list[Fit]:
    """The smallest change of each kind that fits GPUs with `room` bytes: other parallel sizes, smaller or
    offloaded Adam states, GPUs in turns, adapters, and more GPUs. Kinds that do not help are left out."""
    search = _Search(recipe, shape, read, room, longest_prompt)
    ranks, size = recipe.trainer.num_processes, recipe.serving.tensor_parallel_size
    server_gpus = max(size, recipe.serving.num_started() * size)
    kinds: list[tuple[str, Iterable[tuple[Settings, int, int, bool]]]] = [
        ("other parallel sizes", [({}, ranks, server_gpus, False)]),
        ("Adam's states in bfloat16", [(BFLOAT16_STATES, ranks, server_gpus, False)]),
        ("Adam on the host", [(OFFLOADED_STATES, ranks, server_gpus, False)]),
        ("trainer and servers in turns", [({}, ranks + server_gpus, ranks + server_gpus, True)]),
        ("adapters", [({"model.lora": {"rank": LORA_RANK}}, ranks, server_gpus, False)]),
        ("more GPUs", _more(ranks, server_gpus)),
    ]
    if recipe.placement.colocated:
        kinds = [
            (what, [(extra, of_ranks, of_ranks, True) for extra, of_ranks, _, _ in tried])
            for what, tried in kinds
            if what != "trainer and servers in turns"
        ]
    if not FAMILIES[shape.architecture].adapter_targets or recipe.model.lora is not None:
        kinds = [kind for kind in kinds if kind[0] != "adapters"]
    found = [search.first(what, tried) for what, tried in kinds]
    return [fit for fit in found if fit is not None]


def fit_gpus(
    recipe: Recipe,
    shape: ModelShape,
    read: Read,
    *,
    num_gpus: int,
    room: float,
    longest_prompt: int | None = None,
) -> Fit | None:
    """The simplest way to use `num_gpus`: half of them for servers, a quarter, an eighth, or all in turns;
    then the same with Adam on the host. None where nothing fits."""
    search = _Search(recipe, shape, read, room, longest_prompt)
    for extra, what in (({}, ""), (OFFLOADED_STATES, ", Adam on the host")):
        for part in (2, 4, 8):
            if (servers := num_gpus // part) and servers < num_gpus:
                fit = search.first(f"apart{what}", [(extra, num_gpus - servers, servers, False)])
                if fit is not None:
                    return fit
        if (fit := search.first(f"in turns{what}", [(extra, num_gpus, num_gpus, True)])) is not None:
            return fit
    return None


def _more(ranks: int, servers: int) -> Iterator[tuple[Settings, int, int, bool]]:
    factor = 2
    while factor <= MOST_GPUS_FACTOR:
        yield {}, ranks * factor, servers, False
        yield {}, ranks * factor, servers * factor, False
        factor *= 2


@dataclass(frozen=True, slots=True)
class _Search:
    recipe: Recipe
    shape: ModelShape
    read: Read
    room: float
    longest_prompt: int | None

    def first(self, what: str, tried: Iterable[tuple[Settings, int, int, bool]]) -> Fit | None:
        """The simplest layout of the first (settings, ranks, servers' GPUs, takes turns) that can fit."""
        for extra, ranks, server_gpus, in_turns in tried:
            server = self._server_settings(server_gpus, in_turns)
            if server is None:
                continue
            for settings in self._layouts(ranks):
                fit = self._fit(what, {**extra, **settings, **server}, ranks, server_gpus, in_turns)
                if fit is not None:
                    return fit
        return None

    def _server_settings(self, server_gpus: int, in_turns: bool) -> Settings | None:
        """The fewest GPUs per server that leave room for a cache. A fixed cache is kept where it fits."""
        serving = self.recipe.serving
        if serving.servers:
            return {}
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= server_gpus and server_gpus % size == 0]
        for size in sizes:
            if size < serving.tensor_parallel_size or self.shape.num_heads % size:
                continue
            weights = self._weights(size)
            if weights + CACHE_SHARE * self.room > self.room:
                continue
            found: dict[str, Any] = {
                "serving.tensor_parallel_size": size,
                "serving.num_servers": server_gpus // size,
            }
            return found | ({"placement.colocated": True} if in_turns else {})
        return None

    def _layouts(self, ranks: int) -> list[Settings]:
        """Divisions of the model over `ranks`: those that change fewest sizes first, then those with fewer
        pipeline stages, then with fewer tensor ranks, then with fewer ranks for the experts."""
        parallel, shape = self.recipe.trainer.parallel, self.shape
        stages = [
            n for n in range(1, MOST_STAGES + 1) if shape.num_layers % (n * parallel.virtual_stages) == 0
        ]
        experts = [1]
        if shape.num_experts is not None:
            experts = [n for n in range(1, shape.num_experts + 1) if shape.num_experts % n == 0]
        found = []
        for tensor, pipeline, expert, recompute in itertools.product(
            TENSOR_SIZES, stages, experts, ("none", "selective", "full")
        ):
            grid = tensor * pipeline * parallel.context
            if ranks % grid or (ranks // pipeline) % expert:
                continue
            if recompute != "full" and recompute != self.recipe.trainer.recompute:
                continue
            if parallel.virtual_stages > 1 and pipeline == 1:
                continue
            settings: dict[str, Any] = {
                "trainer.num_processes": ranks,
                "trainer.parallel.tensor": tensor,
                "trainer.parallel.pipeline": pipeline,
                "trainer.parallel.expert": expert,
                "trainer.parallel.sequence_parallel": tensor > 1,
                "trainer.recompute": recompute,
            }
            found.append((self._changes(settings), pipeline, tensor, expert, settings))
        return [settings for *_, settings in sorted(found, key=lambda each: each[:4])]

    def _changes(self, settings: Settings) -> int:
        """How many of the parallel sizes differ. Sequence parallelism follows the tensor size."""
        keys = ("trainer.parallel.tensor", "trainer.parallel.pipeline", "trainer.parallel.expert")
        return sum(value_at(self.recipe, key) != settings[key] for key in (*keys, "trainer.recompute"))

    def _fit(self, what: str, settings: Settings, ranks: int, server_gpus: int, in_turns: bool) -> Fit | None:
        changed = {key: value for key, value in settings.items() if value_at(self.recipe, key) != value}
        try:
            recipe = _with(self.recipe, changed)
            memory = trainer_memory(recipe, self.shape, longest_prompt=self.longest_prompt, on_gpu=True)
        except InputError:
            return None
        size = recipe.serving.tensor_parallel_size
        cache = sum(server_memory(self.shape, recipe, on_gpu=True).values()) - self._weights(size)
        if recipe.serving.max_total_tokens is None:
            cache = round(CACHE_SHARE * self.room)
        server = self._weights(size) + cache
        rank = memory.computing(recipe.trainer.recompute)
        beside = memory.resident() + server if in_turns else server
        if max(rank, beside) > self.room:
            return None
        if in_turns and recipe.serving.max_total_tokens is None:
            # Where they share a GPU the engine must not take all that is free.
            left = self.room - memory.resident() - self._weights(size)
            changed["serving.max_total_tokens"] = (
                int(left / self._token_bytes(size)) // CACHE_STEP * CACHE_STEP
            )
        try:
            self.read(changed)
        except InputError:
            return None
        total = ranks if in_turns else ranks + server_gpus
        return Fit(what, changed, total, rank, beside, memory.copies() + memory.beside())

    def _weights(self, size: int) -> int:
        return 2 * num_parameters(self.shape) // size

    def _token_bytes(self, size: int) -> float:
        one = self.recipe.serving.model_copy(update={"max_total_tokens": 1024, "tensor_parallel_size": size})
        recipe = self.recipe.model_copy(update={"serving": one})
        return server_memory(self.shape, recipe, on_gpu=True)["kv_cache"] / 1024


def _with(recipe: Recipe, settings: Settings) -> Recipe:
    """`recipe` with settings, unchecked but for their types: thousands of layouts are tried."""
    for key, value in settings.items():
        *sections, name = key.split(".")
        if name == "lora":
            value = type(recipe.model).model_validate({"path": recipe.model.path, "lora": value}).lora
        recipe = _updated(recipe, sections, name, value)
    return recipe


def _updated(section: Any, sections: list[str], name: str, value: Any) -> Any:
    if not sections:
        return section.model_copy(update={name: value})
    first, *rest = sections
    return section.model_copy(update={first: _updated(getattr(section, first), rest, name, value)})


def offer(recipe: Recipe, shape: ModelShape, arguments: argparse.Namespace) -> str:
    """Lines of `asyncrl plan`: the smallest change of each kind that fits, with its knobs."""
    room = FULL_SHARE * _memory_gb(arguments) * 1e9
    fits = find_fits(recipe, shape, _reader(arguments), room=room, longest_prompt=arguments.longest_prompt)
    if not fits:
        context = recipe.model.context_tokens
        known = "" if context is None else f" from {context}"
        return (
            f"No layout of it fits such GPUs, not even {MOST_GPUS_FACTOR} times as many. Lower "
            f"model.context_tokens{known}, which bounds a sequence, or take a smaller model."
        )
    lines = ["What fits, the smallest change of each kind:"]
    for fit in fits:
        host = f", {_gb(fit.host_bytes)} of host memory per rank" if "host" in fit.what else ""
        lines.append(
            f"  {fit.what:30s} {fit.num_gpus} GPUs, a rank {_gb(fit.rank_bytes)}, a server "
            f"{_gb(fit.server_bytes)}{host}: {fit.words()}"
        )
    return "\n".join(lines)


def fit_table(recipe: Recipe, shape: ModelShape, arguments: argparse.Namespace) -> str:
    """Lines of `asyncrl plan --fit`, one for each number of GPUs."""
    size, read, longest = _memory_gb(arguments), _reader(arguments), arguments.longest_prompt
    lines = [f"{'GPUs':>6s}  {'how':28s} {'a rank':>9s} {'a server':>9s} {'host':>9s}  settings"]
    for num_gpus in arguments.fit:
        room = FULL_SHARE * size * 1e9
        fit = fit_gpus(recipe, shape, read, num_gpus=num_gpus, room=room, longest_prompt=longest)
        found = f"does not fit {size:g} GB each"
        if fit is not None:
            sizes = (fit.rank_bytes, fit.server_bytes, fit.host_bytes)
            found = f"{fit.what:28s} {' '.join(f'{_gb(each):>9s}' for each in sizes)}  {fit.words()}"
        lines.append(f"{num_gpus:6d}  {found}")
    return "\n".join(lines)


def _memory_gb(arguments: argparse.Namespace) -> float:
    """Raises InputError for a --device without a data sheet."""
    if arguments.gpu_memory_gb is not None:
        return float(arguments.gpu_memory_gb)
    name = arguments.device or LIKELY_GPU
    if name not in GPUS:
        raise InputError(f"--device {name} is unknown. Known: {', '.join(GPUS)}.{did_you_mean(name, GPUS)}")
    return GPUS[name].memory_gb


def _reader(arguments: argparse.Namespace) -> Read:
    def read(settings: Settings) -> Recipe:
        words = [f"{key}={_yaml(value)}" for key, value in settings.items()]
        return load_recipe(arguments.recipe, [*arguments.overrides, *words])

    return read


def _yaml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
