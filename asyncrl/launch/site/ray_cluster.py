"""The nodes of a Ray cluster as a site: `cluster.backend: ray`.

Each process has a placement group's bundle and an actor in it (`ray_process.NodeProcess`), which starts the
same command as on one machine. When a node is lost, Ray places its bundles on another one as soon as one has
room; here the actors are made again. What a server or trainer does about it is decided where it would be
after any death: the server joins as STALE, the trainer restarts from its checkpoint.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from asyncrl.errors import InputError, ServerError
from asyncrl.launch.placement import HIDDEN
from asyncrl.launch.site.ray_process import NodeFacts, NodeProcess, RayProcess
from asyncrl.launch.site.site import ControllerDisk, Need, Place
from asyncrl.loops import end_tasks
from asyncrl.recipe import Recipe

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 80 * 2**20
"""Size of a new local cluster's store: nothing but commands and pieces of logs pass through it."""
SAY_SECONDS = 5.0
"""Pause between two looks at what a placement waits for."""
CLOSE_SECONDS = 10.0
"""For nodes to clean up behind a run; one that is lost does not answer."""
CPU_STEP = 1e-4
"""The least that Ray tells apart."""
RETRY_SECONDS = 1.0
"""Pause between two attempts at a place whose node is lost."""
_WAY_OUT = (
    "but no Ray cluster answers there: {}. Start one (ray start --head), set RAY_ADDRESS, or set "
    "cluster.address to local."
)


@dataclass(slots=True)
class _Spot:
    """A bundle and the actor in it."""

    need: Need
    group: PlacementGroup
    index: int
    actor: Any = None
    node: str = ""
    """Ray's id of the node that the actor is on."""
    address: str = ""
    """Address of the node."""


class RayCluster:
    """See `Site`. Made by `open_cluster`."""

    def __init__(self, recipe: Recipe, *, address: str) -> None:
        self._is_shared = recipe.cluster.shared_disk
        self._seconds = recipe.serving.start_timeout_seconds
        is_for_cpus = recipe.placement.device == "cpu"
        self._has_gpus = not is_for_cpus and ray.cluster_resources().get("GPU", 0) > 0
        self._spots: dict[str, _Spot] = {}
        self.address = address
        """Address of the node that the controller is on."""
        self._node = str(ray.get_runtime_context().get_node_id())
        self._disk: ControllerDisk | None = None
        """The disk that other nodes fetch from; None: they see it."""

    async def place(self, needs: Sequence[Need]) -> dict[str, Place]:
        new = [need for need in needs if need.name not in self._spots]
        for group in dict.fromkeys(need.group or need.name for need in new):
            self._reserve([need for need in new if (need.group or need.name) == group])
        places = await asyncio.gather(*(self._settle(self._spots[need.name]) for need in needs))
        return {need.name: place for need, place in zip(needs, places, strict=True)}

    def process(
        self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], log_path: Path
    ) -> RayProcess:
        spot = self._spots[name]
        return RayProcess(
            name,
            arguments,
            actor=spot.actor,
            address=spot.address,
            # Ray 2.60 hides no GPU from an actor that asked for none.
            environment=environment if self._has_gpus else {**environment, **HIDDEN},
            log_path=log_path,
            fetched=functools.partial(self._fetched, spot),
        )

    def hand_out(self, controller: ControllerDisk) -> None:
        self._disk = None if self._is_shared else controller

    async def close(self) -> None:
        closing = [_awaited(spot.actor.close.remote()) for spot in self._spots.values() if spot.node]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*closing, return_exceptions=True)
        for group in {spot.group.id: spot.group for spot in self._spots.values()}.values():
            with contextlib.suppress(RayError):
                remove_placement_group(group)

    async def _fetched(self, spot: _Spot, arguments: Sequence[str]) -> list[str]:
        """The arguments with folders that the spot's node sees. Raises ServerError."""
        disk = self._disk
        if disk is None or spot.node == self._node:
            return list(arguments)
        there: dict[str, str] = {}
        more: list[str] = []
        try:
            if (model := str(disk.model_folder)) in arguments:
                there[model] = await spot.actor.fetch_model.remote(disk.url, disk.keys.token)
            if (run := str(disk.run_folder)) in arguments:
                name = self._name_of(disk.run_folder)
                # The first of a group, which starts first: all are on one node.
                if spot.index == 0:
                    await spot.actor.fetch_run.remote(disk.url, name, disk.keys.token)
                keys = [disk.keys.token, disk.keys.external]
                there[run], files_url = await spot.actor.hand_out_run.remote(name, keys)
                more = ["--files-url", files_url]
        except RayTaskError as error:
            raise ServerError(
                f"{spot.need.name}: nothing was fetched from {disk.url}: {error.cause}"
            ) from error
        return [there.get(argument, argument) for argument in arguments] + more

    def _name_of(self, run_folder: Path) -> str:
        """Name of its part on another node, where runs of other machines may have the same path."""
        origin = hashlib.sha256(f"{self.address} {run_folder}".encode()).hexdigest()[:16]
        return f"{run_folder.name}-{origin}"

    def _reserve(self, needs: Sequence[Need]) -> None:
        """Trainer ranks on as few nodes as possible, on one where nodes share no disk; a server on one."""
        strategy = "PACK" if self._is_shared else "STRICT_PACK"
        wanted = [self._resources(need, index) for index, need in enumerate(needs)]
        group = placement_group(wanted, strategy=strategy)
        for index, need in enumerate(needs):
            self._spots[need.name] = _Spot(need, group, index)

    def _resources(self, need: Need, index: int) -> dict[str, float]:
        # Ray deals bundles out by size, and equal ones above 16 in any order: ranks next to each other would
        # be on nodes apart (ray issue 51117).
        wanted: dict[str, float] = {"CPU": need.num_cpus - index * CPU_STEP}
        if self._has_gpus:
            wanted["GPU"] = need.num_gpus
        return wanted

    async def _settle(self, spot: _Spot) -> Place:
        """Waits until the spot's node answers; one whose actor is lost gets another actor. Until Ray knows of
        the loss, the new one is lost too."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds
        while True:
            spot.actor = spot.actor or self._make_actor(spot)
            try:
                said = await self._answer(spot)
                spot.node, spot.address = said.node, said.address
                has_gpu = said.has_gpu and self._has_gpus
                return Place(said.address, said.address, said.port, has_gpu, is_alone=self._has_gpus)
            except RayTaskError:
                raise
            except RayError as error:
                if spot.address:
                    log.warning("%s is placed again: its node %s was lost", spot.need.name, spot.address)
                with contextlib.suppress(RayError):
                    # One that was out of reach for a while would keep its bundle.
                    ray.kill(spot.actor)
                spot.actor, spot.node, spot.address = None, "", ""
                if clock() > deadline:
                    raise InputError(
                        f"{spot.need.name} cannot be placed: for {self._seconds:.0f} s every node that it "
                        f"was given was lost (serving.start_timeout_seconds). {_free_words()}"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS)

    def _make_actor(self, spot: _Spot) -> Any:
        wanted = self._resources(spot.need, spot.index)
        return (
            ray.remote(NodeProcess)
            .options(
                num_cpus=wanted["CPU"],
                num_gpus=wanted.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    spot.group, placement_group_bundle_index=spot.index
                ),
                max_restarts=0,
            )
            .remote(spot.need.name)
        )

    async def _answer(self, spot: _Spot) -> NodeFacts:
        """Asks the actor about its node. Raises RayError, and InputError after the time limit."""
        asked = asyncio.ensure_future(_awaited(spot.actor.describe.remote()))
        waited = 0.0
        try:
            while not (await asyncio.wait((asked,), timeout=SAY_SECONDS))[0]:
                waited += SAY_SECONDS
                words = f"{spot.need.name} waits for {self._words(spot.need)}. {_free_words()}"
                if waited >= self._seconds:
                    raise InputError(
                        f"{words} It waited {waited:.0f} s (serving.start_timeout_seconds). Add nodes, or "
                        f"ask for less (trainer.num_processes, serving.num_servers, "
                        f"serving.tensor_parallel_size)."
                    )
                log.warning("%s", words)
            answer: NodeFacts = asked.result()
            return answer
        finally:
            await end_tasks(asked)

    def _words(self, need: Need) -> str:
        together = [need]
        if need.group and not self._is_shared:
            together = [spot.need for spot in self._spots.values() if spot.need.group == need.group]
        num_gpus, num_cpus = sum(n.num_gpus for n in together), sum(n.num_cpus for n in together)
        gpus = f"{num_gpus} GPU(s) and " if self._has_gpus else ""
        why = " for all of its group (cluster.shared_disk is false)" if len(together) > 1 else ""
        return f"a node with {gpus}{num_cpus} CPU(s) free{why}"


@contextlib.asynccontextmanager
async def open_cluster(recipe: Recipe) -> AsyncIterator[RayCluster]:
    """Connects to the cluster of `cluster.address`, or starts one. Raises InputError when there is none.

    What the run placed ends with it, on every node.
    """
    address = recipe.cluster.address
    _check_answers(address)
    options: dict[str, Any] = {}
    if address == "local":
        options = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    except ConnectionError as error:
        raise InputError(f"cluster.address is {address}, {_WAY_OUT.format(error)}") from error
    cluster = RayCluster(recipe, address=ray.util.get_node_ip_address())
    try:
        yield cluster
    finally:
        await cluster.close()
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Ray itself would wait minutes for a head that is not there. Raises InputError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        with socket.create_connection((host, int(port)), timeout=5.0):
            return
    except OSError as error:
        raise InputError(f"cluster.address is {address}, {_WAY_OUT.format(error)}") from None


def _free_words() -> str:
    """The cluster's resources, in all and free, for a message about a wait."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    sizes = sorted((node.get("GPU", 0), node.get("CPU", 0)) for node in nodes)
    has = ", ".join(f"{gpus:g} GPU(s) and {cpus:g} CPU(s)" for gpus, cpus in sizes)
    return (
        f"The cluster has {len(nodes)} node(s) with {has}; of all that, {free.get('GPU', 0):g} GPU(s) and "
        f"{free.get('CPU', 0):g} CPU(s) are free."
    )


async def _awaited(reference: Any) -> Any:
    return await reference
