"""The nodes of a Ray cluster as a site: `cluster.backend: ray`.

Each process has a placement group's bundle and an actor in it (`ray_node.NodeProcess`), which starts the same
command as on one machine. When a node is lost, Ray places its bundles on another one as soon as one has room;
here the actors are made again. What a server or trainer does about it is decided where it would be after any
death: the server joins as STALE, the trainer restarts from its checkpoint.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from asyncrl.errors import InputError, ServerError
from asyncrl.launch.ray_node import NodeProcess
from asyncrl.launch.ray_process import RayProcess
from asyncrl.launch.site import Need, Place
from asyncrl.model.folder import model_digest
from asyncrl.recipe import Recipe

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 80 * 2**20
"""Of a new local cluster: nothing but commands and pieces of logs pass through it."""
SAY_SECONDS = 5.0
"""Between two looks at what a placement waits for."""
RETRY_SECONDS = 1.0
"""Between two attempts at a place whose node is lost."""
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
    address: str = ""
    """Of the node."""


class RayCluster:
    """See `Site`. Made by `open_cluster`."""

    def __init__(self, recipe: Recipe, *, address: str) -> None:
        self._is_shared = recipe.cluster.shared_disk
        self._seconds = recipe.serving.start_timeout_seconds
        self._has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        self._spots: dict[str, _Spot] = {}
        self.address = address
        """Of the node that the controller is on."""
        self._model: tuple[str, str, str] | None = None
        """The base model's folder here, where other nodes fetch it, and its name there; None: they see it."""
        self._token = ""

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
            environment=environment,
            log_path=log_path,
            fetched=self._fetched,
        )

    def hand_out_model(self, folder: Path, url: str, token: str) -> None:
        if not self._is_shared:
            self._model, self._token = (str(folder), url, f"{folder.name}-{model_digest(folder)}"), token

    async def node_of(self, name: str) -> str:
        """Ray's id of the node that a process has its place on."""
        return str(await self._spots[name].actor.node.remote())

    def close(self) -> None:
        for group in {spot.group.id: spot.group for spot in self._spots.values()}.values():
            with contextlib.suppress(RayError):
                remove_placement_group(group)

    async def _fetched(self, actor: Any, arguments: Sequence[str]) -> list[str]:
        """The arguments with the base model's folder on the actor's node. Raises ServerError."""
        if self._model is None or self._model[0] not in arguments:
            return list(arguments)
        here, url, name = self._model
        try:
            there = await actor.fetch_model.remote(url, name, self._token)
        except RayTaskError as error:
            raise ServerError(f"the base model was not fetched from {url}: {error.cause}") from error
        return [there if argument == here else argument for argument in arguments]

    def _reserve(self, needs: Sequence[Need]) -> None:
        """Trainer ranks on as few nodes as possible; a server has one bundle, which is on one node."""
        group = placement_group([self._resources(need) for need in needs], strategy="PACK")
        for index, need in enumerate(needs):
            self._spots[need.name] = _Spot(need, group, index)

    def _resources(self, need: Need) -> dict[str, float]:
        wanted: dict[str, float] = {"CPU": need.num_cpus}
        if self._has_gpus:
            wanted["GPU"] = need.num_gpus
        if need.group and not self._is_shared:
            wanted[f"node:{self.address}"] = 0.001
        return wanted

    async def _settle(self, spot: _Spot) -> Place:
        """Waits until the spot's node answers; one whose actor is lost gets another actor. Until Ray knows of
        the loss, the new one is lost too."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds
        while True:
            spot.actor = spot.actor or self._make_actor(spot)
            try:
                spot.address, port, has_gpu = await self._answer(spot)
                return Place(spot.address, spot.address, port, has_gpu, is_alone=self._has_gpus)
            except RayActorError as error:
                if spot.address:
                    log.warning("%s is placed again: its node %s was lost", spot.need.name, spot.address)
                spot.actor, spot.address = None, ""
                if clock() > deadline:
                    raise InputError(
                        f"{spot.need.name} cannot be placed: for {self._seconds:.0f} s every node that it "
                        f"was given was lost (serving.start_timeout_seconds). {_free_words()}"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS)

    def _make_actor(self, spot: _Spot) -> Any:
        wanted = self._resources(spot.need)
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

    async def _answer(self, spot: _Spot) -> tuple[str, int, bool]:
        """What the actor says of its node. Raises RayActorError, and InputError after the time limit."""
        asked = asyncio.ensure_future(_awaited(spot.actor.describe.remote()))
        waited = 0.0
        while not (await asyncio.wait((asked,), timeout=SAY_SECONDS))[0]:
            waited += SAY_SECONDS
            words = f"{spot.need.name} waits for {self._words(spot.need)}. {_free_words()}"
            if waited >= self._seconds:
                asked.cancel()
                raise InputError(
                    f"{words} It waited {waited:.0f} s (serving.start_timeout_seconds). Add nodes, or ask "
                    f"for less (trainer.num_processes, serving.num_servers, serving.tensor_parallel_size)."
                )
            log.warning("%s", words)
        answer: tuple[str, int, bool] = asked.result()
        return answer

    def _words(self, need: Need) -> str:
        wanted = self._resources(need)
        gpus = f"{need.num_gpus} GPU(s) and " if "GPU" in wanted else ""
        where = f" {self.address}, where the controller is," if len(wanted) > 1 + bool(gpus) else ""
        return f"a node{where} with {gpus}{need.num_cpus} CPU(s) free"


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
        cluster.close()
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
    """What the cluster has and what of it is free, for who waits."""
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
