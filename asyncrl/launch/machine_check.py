"""Whether this machine has what a recipe would start on it: memory, disk, cores, ports, addresses.

Raises InputError with one clear sentence before any process starts.
"""

import importlib.util
import logging
import os
import shutil
import socket
import urllib.parse

from asyncrl.errors import InputError
from asyncrl.launch.doctor.network import DEFAULT_PORTS
from asyncrl.launch.meters.memory import (
    FULL_SHARE,
    gpu_bytes,
    host_bytes,
    num_local_servers,
    num_side_ranks,
    run_bytes,
)
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.servers import check_free, check_ports
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.serving import ANYWHERE, LOOPBACK, Cluster
from asyncrl.serving.sglang.health import SPARE_TOKENS, Capacity
from asyncrl.system.gpus import free_gpu_bytes
from asyncrl.system.machine import machine_memory
from asyncrl.system.places import check_plugin
from asyncrl.wire.access import external_key
from sandbox.cgroup import available_cores

log = logging.getLogger(__name__)

MIN_DISK_BYTES = 200 * 2**20


def check_machine(
    recipe: Recipe,
    shape: ModelShape,
    gpus: GpuMap,
    *,
    longest_prompt: int | None = None,
    longest_evaluated: int = 0,
) -> None:
    """Memory, disk and ports for what the recipe would start here; the longest prompt of its data, in tokens,
    bounds what a batch can hold, and the longest held-out prompt with its response what a server must hold.
    The memory of other nodes is not known."""
    if longest_prompt is not None:
        check_summaries(recipe, longest_prompt)
    if recipe.cluster.backend == "local" or recipe.serving.max_total_tokens is not None:
        _check_cache(recipe, shape, longest_prompt, longest_evaluated, has_gpu=gpus.uses_gpus)
    if gpus.uses_gpus:
        _check_gpus(recipe, shape, gpus, longest_prompt)
    if recipe.cluster.backend == "local":
        _check_host(recipe, shape, longest_prompt, has_gpu=gpus.uses_gpus)
        if not gpus.uses_gpus:
            _warn_of_crowded_cores(recipe)
    existing = next(p for p in [recipe.folder(), *recipe.folder().absolute().parents] if p.exists())
    if not os.access(existing, os.W_OK):
        raise InputError(f"run_folder {recipe.folder()} cannot be written: no permission in {existing}.")
    free = shutil.disk_usage(existing).free
    # One more is being written, and one may be the best.
    num_checkpoints = recipe.trainer.keep_checkpoints + 1 + recipe.trainer.keep_best
    trained = num_parameters(shape) * (1 + recipe.algorithm.needs_critic())
    kept = num_parameters(shape) * (recipe.algorithm.kl.refresh_steps > 0)
    disk = MIN_DISK_BYTES + (20 * trained + 4 * kept) * num_checkpoints
    if free < disk:
        raise InputError(
            f"run_folder {recipe.folder()} has {free / 2**30:.2f} GiB of disk, the run needs about "
            f"{disk / 2**30:.2f} GiB. Free some, or set run_folder to another disk."
        )
    if recipe.cluster.backend == "ray" and importlib.util.find_spec("ray") is None:
        raise InputError(
            "cluster.backend is ray, but Ray is not installed. Run `make setup RAY=1`, or set it to local."
        )
    if recipe.cluster.backend == "local" and recipe.serving.num_started():
        check_plugin()
    external_key(recipe.serving.api_key_variable)
    check_ports(recipe)
    _check_addresses(recipe.cluster)
    for url in recipe.serving.servers:
        _check_reachable(url, "serving.servers names")
    if recipe.teacher.url is not None:
        _check_reachable(recipe.teacher.url, "teacher.url is")


def check_summaries(recipe: Recipe, longest_prompt: int) -> None:
    """Raises InputError where no turn fits between a prompt with a summary and the next summary."""
    asked = recipe.turns.summarize
    if asked is not None and longest_prompt + asked.max_tokens >= asked.at_tokens:
        raise InputError(
            f"turns.summarize.at_tokens is {asked.at_tokens}, but the longest prompt of the data has "
            f"{longest_prompt} tokens and a summary up to {asked.max_tokens} (turns.summarize.max_tokens): "
            f"no turn would fit between two summaries. Raise turns.summarize.at_tokens, or lower "
            f"turns.summarize.max_tokens."
        )


def _check_cache(
    recipe: Recipe, shape: ModelShape, longest_prompt: int | None, longest_evaluated: int, *, has_gpu: bool
) -> None:
    """Raises InputError where the cache of a local server cannot hold one trajectory."""
    tokens = recipe.serving.cache_tokens(has_gpu=has_gpu)
    if tokens is None or not recipe.serving.num_started():
        return
    context = recipe.model.context_tokens or shape.max_positions
    longest = min(context, (longest_prompt or 1) + recipe.longest_response())
    observed = " with what its turns observe" if recipe.turns.is_on() else ""
    capacity = Capacity(tokens, recipe.serving.max_running_requests)
    most = recipe.rollout.max_new_tokens
    own = "rollout", f"the longest prompt of the data and a response of rollout.max_new_tokens {most}"
    asked = "evaluation", "the longest held-out prompt and a response of an evaluation's max_new_tokens"
    for needed, (section, what) in ((longest, own), (longest_evaluated, asked)):
        if not capacity.holds(needed):
            raise InputError(
                f"serving.max_total_tokens is {tokens}, but {what}{observed} have {needed}, and a server "
                f"keeps {SPARE_TOKENS} free. Raise serving.max_total_tokens to {needed + SPARE_TOKENS} or "
                f"more, or lower {section}.max_new_tokens."
            )


def _check_host(recipe: Recipe, shape: ModelShape, longest_prompt: int | None, *, has_gpu: bool) -> None:
    """Raises InputError where the memory that is free, or that memory_gib allows, is too small."""
    memory = machine_memory()
    available = memory.available if recipe.memory_gib is None else recipe.memory_gib * 2**30
    if has_gpu:
        kind, needed = "host memory", host_bytes(recipe, shape)
        advice = "Lower serving.num_servers or trainer.num_processes, or use a smaller model"
    else:
        kind, needed = "memory", run_bytes(recipe, shape, longest_prompt=longest_prompt)
        advice = (
            "Set trainer.recompute to full or trainer.saves_in_background to false, lower "
            "trainer.tokens_per_micro_batch, serving.max_total_tokens, serving.num_servers or "
            "trainer.num_processes, or use a smaller model"
        )
    if needed > available:
        free = "are left by the control group of this process" if memory.is_bounded else "are free"
        there = free if recipe.memory_gib is None else "are what memory_gib allows"
        raise InputError(
            f"the run needs about {needed / 2**30:.1f} GiB of {kind}, {available / 2**30:.1f} GiB {there}. "
            f"{advice}; `asyncrl plan` says what needs how much. Set memory_gib where you know better."
        )


def _check_gpus(recipe: Recipe, shape: ModelShape, gpus: GpuMap, longest_prompt: int | None) -> None:
    """Raises InputError where a GPU has less free memory than the process on it needs."""
    free = free_gpu_bytes()
    for gpu, needed, name in gpu_bytes(recipe, shape, gpus, longest_prompt=longest_prompt):
        there = free.get(gpu.device)
        if there is not None and needed > FULL_SHARE * there:
            raise InputError(
                f"GPU {gpu.number} has {there / 1e9:.1f} GB free, of which the run may use {FULL_SHARE:.0%}; "
                f"{name} needs {needed / 1e9:.1f} GB. Set trainer.recompute to full, lower "
                f"trainer.tokens_per_micro_batch or serving.max_total_tokens, or divide the model "
                f"(trainer.parallel); `asyncrl plan` says what needs how much."
            )


def _check_addresses(cluster: Cluster) -> None:
    """Raises InputError where others would not find the controller."""
    if cluster.bind_address == ANYWHERE and cluster.host() == LOOPBACK:
        raise InputError(
            f"cluster.bind_address is {ANYWHERE}, but this machine has no way to other networks: the others "
            f"would be told {LOOPBACK}. Set cluster.advertised_address to the address that they reach."
        )
    if cluster.port:
        check_free(cluster.port, cluster.bind_address, "cluster.port")


def _check_reachable(url: str, named: str) -> None:
    """Raises InputError; `named` says which key names it."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError as error:
        raise InputError(f"{named} {url!r}, which is no URL: {error}.") from None
    if host is None or parts.scheme not in DEFAULT_PORTS:
        raise InputError(f"{named} {url!r}, expected a URL such as http://10.0.0.7:30000 or https://host.")
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return
    except OSError as error:
        raise InputError(f"{named} {url}, which does not answer: {error}.") from None


def _warn_of_crowded_cores(recipe: Recipe) -> None:
    """The threads of a process wait for each other, so one without a core of its own holds up the others."""
    serving, trainer = recipe.serving, recipe.trainer
    num_servers = num_local_servers(recipe) * serving.tensor_parallel_size
    num_servers += num_side_ranks(recipe)
    of_servers = num_servers * serving.threads_per_server
    of_trainer = trainer.num_processes * trainer.threads_per_process
    # Colocated ones take turns.
    total = max(of_servers, of_trainer) if recipe.placement.colocated else of_servers + of_trainer
    cores = available_cores()
    widest = max(serving.threads_per_server if num_servers else 1, trainer.threads_per_process)
    if widest > 1 and total > cores:
        log.warning(
            "WARNING: servers compute with %d thread(s) and the trainer with %d, on %d core(s) for both. A "
            "process whose threads share cores takes several times as long. Lower serving.threads_per_server "
            "or trainer.threads_per_process.",
            of_servers,
            of_trainer,
            cores,
        )
